"""Handwritten digits that an installed scikit-learn brings: 1,797 images of 8x8, no download.

Only its data file is read; scikit-learn itself is never imported.
"""

import gzip
import importlib.util
import zlib
from pathlib import Path

import numpy as np

from pww.data.images.labelled import Labelled
from pww.errors import DataError

SIDE = 8
MEAN, STD = (0.3053,), (0.3759,)
"""Of the pixels, on a scale of 0 to 1."""


def digits() -> Labelled:
    """All images, their 17 grey levels spread over a byte.

    Raises:
        DataError: scikit-learn is not installed, or its file is another one.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataError(
            "data=digits needs the images that scikit-learn brings: pip install 'pww[vision]', or "
            "use data=cifar10"
        )
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        with gzip.open(path, "rt") as lines:
            table = np.loadtxt(lines, delimiter=",", dtype=np.int64, ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as why:
        raise DataError(f"{path} cannot be read ({why}): install scikit-learn again") from why
    if table.shape[1] != SIDE * SIDE + 1 or table.min() < 0 or table[:, :-1].max() > 16:
        raise DataError(f"{path} is not the table of digits: install scikit-learn again")
    levels = table[:, :-1].reshape(-1, 1, SIDE, SIDE)
    pixels = ((levels * 255 + 8) // 16).astype(np.uint8)
    return Labelled(pixels, table[:, -1].astype(np.uint8), "scikit-learn's digits")
