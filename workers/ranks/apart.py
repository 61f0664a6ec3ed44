"""What is raised where the ranks of a worker have lost each other in mid-step."""


class RanksApart(Exception):
    """Another rank is gone, or silent for too long. Which one, the leader knows by its link."""
