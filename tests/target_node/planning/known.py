"""What prices are known to be, as a snapshot has them."""

from specserve.sampling.verification.admission import PlanningSnapshot, RoundFacts
from target_node.planning.round_prices import LoadView, RoundPrices, _view


def now(prices: RoundPrices) -> LoadView:
    """Of the load of the round that began last."""
    return _view(prices._load)


def facts(prices: RoundPrices) -> RoundFacts:
    view = now(prices)
    return RoundFacts(snapshot=PlanningSnapshot(view.threshold.token_price))
