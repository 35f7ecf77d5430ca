"""Problems of the gallery for the solver, with all that it takes: objectives, samplers, start and solution."""
