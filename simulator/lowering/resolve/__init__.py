"""From a plan to a `ResolvedPlan`: every choice made, every rule checked, before a row is written."""
