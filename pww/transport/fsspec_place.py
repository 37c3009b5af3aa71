"""A folder or bucket by its fsspec URL: names, sizes, faults in our words, no secret in a log."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pww.errors import CentralError, PwwError, StateError
from pww.transport.retry import TryAgain

T = TypeVar("T")
_OURS = re.compile(r"[0-9a-f]{64}(\.[0-9a-f]{8}\.part)?\Z")


class Place:
    """Where objects lie, each under its digest. `shown` is how a person may see it."""

    def __init__(
        self, url: str, options: Mapping[str, Any], *, repeated: Callable[[], None]
    ) -> None:
        """`options` are the file system's own (an endpoint, credentials); none is ever logged.

        `repeated` is called when S3's client by itself sends a request once more; not for the one
        time that its HTTP library opens a broken connection anew. The client holds it for good: let
        it not hold the place, which could not go then.

        Raises:
            StateError: the package for this kind of URL is not installed.
            CentralError: fsspec knows no such URL.
        """
        import fsspec

        self.shown, self._url = without_credentials(url), url
        try:
            self.fs, self.root = fsspec.core.url_to_fs(
                url, **_with_defaults(url, options, repeated=repeated)
            )
        except ImportError as why:
            raise StateError(
                f"{self.shown} needs a package that is not installed ({why}): for s3:// it is "
                "pip install 'pww[s3]'"
            ) from why
        except ValueError as why:
            raise CentralError(
                f"{self.shown} is no URL that fsspec can open ({why}): give one like "
                "s3://bucket/run or file:///shared/run"
            ) from None
        protocols = self.fs.protocol
        self.protocols = (protocols,) if isinstance(protocols, str) else tuple(protocols)
        if "s3" in self.protocols:
            self.fs.retries = 1  # of s3fs: what botocore gave up is tried again by who counts it

    def name(self, digest: str) -> str:
        """An object's name in the file system."""
        return f"{self.root.rstrip('/')}/{digest}"

    def size(self, name: str) -> int:
        """Bytes of an object; -1 if there is none."""
        self.fs.invalidate_cache()
        try:
            return int(self.fs.info(name)["size"])
        except FileNotFoundError:
            return -1

    def contents(self) -> dict[str, str]:
        """Objects and unfinished uploads by name, and words that differ when one changes."""
        self.fs.invalidate_cache()
        try:
            rows = self.fs.ls(self.root, detail=True)
        except FileNotFoundError:
            return {}
        found = {}
        for row in rows:
            name = str(row["name"]).rstrip("/").rpartition("/")[2]
            if _OURS.match(name):
                when = [str(row[key]) for key in ("mtime", "LastModified", "created") if key in row]
                found[name] = f"{row['size']} {' '.join(when)}"
        return found

    def guarded(self, call: Callable[[], T]) -> T:
        """Runs a call of fsspec; its many kinds of faults become what the retry loop knows."""
        try:
            return call()
        except (PwwError, TryAgain):
            raise
        except PermissionError as why:
            raise CentralError(
                f"{self.shown} does not let this process in ({self._clean(why)}): check its "
                "credentials and permissions"
            ) from why
        except FileNotFoundError as why:
            raise CentralError(
                f"{self.shown}: {self._clean(why)}: make the bucket or folder, or check the URL"
            ) from why
        except Exception as why:  # botocore's and aiohttp's faults have no common class
            raise TryAgain(f"{type(why).__name__}: {self._clean(why)}") from why

    def _clean(self, why: BaseException) -> str:
        return str(why).replace(self._url, self.shown)[:200]


def place_of(url: str, run: str) -> str:
    """A run's own part of an object store or shared folder: several runs may share `url`."""
    return f"{url.rstrip('/')}/{run}"


def _with_defaults(
    url: str, options: Mapping[str, Any], *, repeated: Callable[[], None]
) -> dict[str, Any]:
    """Options of a file system, and those that hold unless others are given.

    S3's own checksum of a whole object comes with a range of it from stores that are not Amazon's,
    and botocore then calls the range damaged; over https it sends one behind an upload of no told
    length, which such stores do not take. The digest is checked here anyway. A session of our own
    hears of each request that botocore sends once more.
    """
    if url.partition("://")[0] not in ("s3", "s3a"):
        return dict(options)
    names = ("request_checksum_calculation", "response_checksum_validation")
    config = {**dict.fromkeys(names, "when_required"), **options.get("config_kwargs", {})}
    from aiobotocore.session import AioSession

    def created(request: Any, **_: object) -> None:
        if request.context.get("retries", {}).get("attempt", 1) > 1:
            repeated()

    session = AioSession()
    session.register("request-created.s3", created)
    ours = {"session": session, "skip_instance_cache": True}  # kept, each would stay for good
    return {**ours, **options, "config_kwargs": config}


def without_credentials(url: str) -> str:
    """A URL fit for a log."""
    scheme, mark, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{mark}{place.rpartition('@')[2]}{slash}{path.partition('?')[0]}"
