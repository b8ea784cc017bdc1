"""Of all tests: a property holds however busy the machine is, so hypothesis watches no clock."""

from hypothesis import settings

settings.register_profile("gyre", deadline=None)
settings.load_profile("gyre")
