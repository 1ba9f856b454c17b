"""`python -m bench.drafters`: how many tokens a round drafters are good for."""
