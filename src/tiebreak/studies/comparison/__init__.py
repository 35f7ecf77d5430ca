"""Many methods on many problems: each problem and method is compared at each budget by its residual."""
