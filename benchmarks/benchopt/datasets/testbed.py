"""The problems of tiebreak's test bed, by name."""

from benchopt import BaseDataset


class Dataset(BaseDataset):  # type: ignore[misc]  # benchopt has no types
    name = "Testbed"
    parameters = {  # noqa: RUF012  # benchopt reads class attributes
        "problem": ["paper", "valley-10", "islands-10", "sphere-10", "valley-100-heavy"]
    }
    test_parameters = {"problem": ["paper"]}  # noqa: RUF012  # benchopt reads class attributes

    def get_data(self) -> dict[str, str]:
        """The name; the objective makes the problem."""
        return {"problem": self.problem}
