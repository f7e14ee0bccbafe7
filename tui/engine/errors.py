"""Why a model cannot be loaded."""


class ModelError(Exception):
    """Its text is one sentence for the user: what is wrong, where, what to do."""


class LoadStopped(ModelError):
    """The user stopped the load."""
