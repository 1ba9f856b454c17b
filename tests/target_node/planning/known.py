"""What prices are known to be, as a snapshot has them."""

from specserve.drafters.protocol import StoppingThreshold
from specserve.sampling.verification.admission import PlanningSnapshot, RoundFacts
from target_node.planning.round_prices import RoundPrices


def now(prices: RoundPrices) -> StoppingThreshold:
    """Of the load of the round that began last."""
    return prices._load.threshold


def facts(prices: RoundPrices) -> RoundFacts:
    return RoundFacts(snapshot=PlanningSnapshot(now(prices).token_price))
