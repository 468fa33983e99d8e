"""How candidates are graded by specs: what runs where, and what its results are worth."""
