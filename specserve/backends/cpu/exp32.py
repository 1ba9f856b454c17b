"""e**x in float32, in a form that loops are vectorised with.

Plain Python: who calls it compiles it with flags of its own, strict where bits are promised.
"""

import numpy as np

_LOG2_E = np.float32(1.44269504)
_LEAST_EXPONENT, _MOST_EXPONENT, _BIAS = np.float32(-126.0), np.float32(127.0), np.int32(127)
_MANTISSA_BITS = np.int32(23)


def exp32(x: np.float32) -> np.float32:
    """e**x to the last few bits; 1e-38 to 2e38."""
    scaled = x * _LOG2_E
    if scaled < _LEAST_EXPONENT:  # false for NaN, which is to stay one
        scaled = _LEAST_EXPONENT
    if scaled > _MOST_EXPONENT:
        scaled = _MOST_EXPONENT
    whole = np.floor(scaled + np.float32(0.5))
    part = scaled - whole  # -.5 to .5, and 2**part by its series
    power = np.float32(1.5403530e-4)
    power = power * part + np.float32(1.3333558e-3)
    power = power * part + np.float32(9.6181291e-3)
    power = power * part + np.float32(5.5504109e-2)
    power = power * part + np.float32(2.4022651e-1)
    power = power * part + np.float32(6.9314718e-1)
    power = power * part + np.float32(1.0)
    bits = np.int32((np.int32(whole) + _BIAS) << _MANTISSA_BITS)
    return power * bits.view(np.float32)
