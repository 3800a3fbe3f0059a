"""How many examples a property gets, by HYPOTHESIS_PROFILE; those marked ``many`` get twenty times as many."""

import os

from hypothesis import HealthCheck, settings

for name, examples in {"quick": 30, "ci": 100, "soak": 2_500}.items():
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,  # two cores are shared by many tests
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
