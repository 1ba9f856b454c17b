"""Several machines as one launch: how they meet, and what they tell each other from then on.

`meeting` is what a launch does before it starts anything: it puts what the machine says of itself
into a store of torch's (`store`, in a process of its own), and has what all others say. `links` are
the connections between the supervisors, one from each machine to the first one; `messages` travel
on them as `lines` of JSON. Why: docs/decisions/0049.
"""
