from hypothesis import settings

# How long an example takes says nothing about what it checks.
settings.register_profile("memory", deadline=None)
settings.load_profile("memory")
