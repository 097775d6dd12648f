"""Static pages over the results of a preset: gallery, figures, claims, rules, cost."""
