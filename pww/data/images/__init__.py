"""Images with labels: CIFAR-10 from local files, and scikit-learn's digits."""

from pww.data.images.cifar import cifar10_test, cifar10_train
from pww.data.images.digits import digits
from pww.data.images.labelled import Labelled, split_off

__all__ = ["Labelled", "cifar10_test", "cifar10_train", "digits", "split_off"]
