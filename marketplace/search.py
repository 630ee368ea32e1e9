"""Finding offers: the query string is the search. Nothing is dropped in silence.

Each filter has its unit in its description; a value that cannot be read, or a name that is no filter, is an error that
says so, and then nothing is shown as found. What was understood is said back, in one line and as chips to take away.

>>> search = parse({"gpus": "2", "vram_min": "24GB", "price_max": "0.50", "sort": "price"})
>>> search.errors, search.understood
({}, 'gpus >= 2 and price <= 0.50 and vram >= 24 order by price')
>>> str(parse({"vram_min": "24 bananas"}).errors["vram_min"])
'“24 bananas” is not a number of GB.'
>>> str(parse({"vram": "24"}).errors[""])
'There is no filter called “vram”. Did you mean “vram_min”?'
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import F, Q, QuerySet, Window
from django.db.models.functions import RowNumber
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from gpunex.kit.refusals import Refusal
from gpunex.kit.show import cut
from gpunex.kit.show import price as price_text
from gpunex.policy.models import Tier
from marketplace.models import Listing
from marketplace.pricing import parse_price
from providers import places
from providers.models import GpuModel

PAGE = 25
NOT_FILTERS = frozenset({"sort", "page", "why"})
_NUMBER = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([a-zµ%/.]*)", re.IGNORECASE)
_DIGITS = str.maketrans("٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹٫", "01234567890123456789.")


class NotUnderstood(Refusal):
    code = "filter_not_understood"
    message = _("“%(text)s” is not a number of %(unit)s.")


class NoSuchChoice(NotUnderstood):
    message = _("“%(text)s” is not known here.")


class NoSuchFilter(NotUnderstood):
    message = _("There is no filter called “%(name)s”. Did you mean “%(nearest)s”?")


class OutOfRange(NotUnderstood):
    message = _("Between %(least)s and %(most)s.")


@dataclass(frozen=True)
class Condition:
    """One filter as understood: ``query`` for the database, ``text`` for the echo, ``words`` for people."""

    name: str
    query: Q
    text: str
    words: str


@dataclass(frozen=True)
class Search:
    conditions: tuple[Condition, ...] = ()
    sort: str = "-rank"
    errors: dict[str, Refusal] = field(default_factory=dict)

    @property
    def understood(self) -> str:
        told = " and ".join(condition.text for condition in self.conditions)
        order = (
            f"order by {self.sort.removeprefix('-')}{' desc' if self.sort.startswith('-') else ''}"
            if self.sort != "-rank"
            else ""
        )
        return " ".join(part for part in (told, order) if part)

    def has(self, name: str) -> bool:
        return any(condition.name == name for condition in self.conditions)

    def matching(self) -> QuerySet[Listing]:
        """What fits, whether it can be rented now or not."""
        found: QuerySet[Listing] = Listing.objects.all()
        for condition in self.conditions:
            found = found.filter(condition.query)
        return found if not self.errors else found.none()

    def offers(self, at: datetime) -> QuerySet[Listing]:
        """What fits and can be rented now, in order, each with its ``place`` by rank."""
        wanted = next((condition for condition in self.conditions if condition.name == "gpus"), None)
        found = Listing.objects.open(at) & self.matching()
        if wanted is None:
            found = found.filter(gpus_free__gte=1)
        best = [F("rank").desc(), F("price_micro").asc(), F("pk").asc()]
        return found.annotate(place=Window(RowNumber(), order_by=best)).order_by(*SORTS[self.sort], *best)


def parse(query: Mapping[str, str]) -> Search:
    """Read a query string. Empty values are no filter; errors are kept by parameter, "" for names that are none."""
    conditions: list[Condition] = []
    errors: dict[str, Refusal] = {}
    for name, text in query.items():
        if name in NOT_FILTERS or not text.strip():
            continue
        known = FILTERS.get(name)
        if known is None:
            nearest = difflib.get_close_matches(name, FILTERS, n=1, cutoff=0)[0]
            errors[""] = NoSuchFilter(name=name[:40], nearest=nearest)
            continue
        try:
            if "\x00" in text:  # PostgreSQL takes none, not even to compare with
                raise NoSuchChoice(text=text.replace("\x00", "")[:40])
            conditions.append(known.read(text.strip()))
        except Refusal as refusal:
            errors[name] = refusal
    sort = query.get("sort", "").strip() or "-rank"
    if sort not in SORTS:
        errors["sort"] = NoSuchChoice(text=sort[:40])
        sort = "-rank"
    order = list(FILTERS)
    return Search(tuple(sorted(conditions, key=lambda condition: order.index(condition.name))), sort, errors)


@dataclass(frozen=True)
class Filter:
    """``label`` names it with its bound, ``unit`` is what it is a number of; ``read`` turns text into a condition."""

    name: str
    label: str | Promise
    unit: str | Promise
    read: Callable[[str], Condition]


def _model(text: str) -> Condition:
    found = GpuModel.objects.filter(Q(slug=text.lower()) | Q(name__iexact=text)).first()
    if found is None:
        raise NoSuchChoice(text=text[:40])
    return Condition("model", Q(gpu_model=found), f'model = "{found.name}"', found.name)


def _region(text: str) -> Condition:
    code = text.upper()
    if code not in places.REGIONS:
        raise NoSuchChoice(text=text[:40])
    return Condition("region", Q(region=code), f"region = {code}", places.region_name(code))


def _country(text: str) -> Condition:
    code = text.upper()
    if code not in places.COUNTRIES:
        raise NoSuchChoice(text=text[:40])
    return Condition("country", Q(country=code), f"country = {code}", places.country_name(code))


def _tier(text: str) -> Condition:
    if text not in Tier.values:
        raise NoSuchChoice(text=text[:40])
    return Condition("tier", Q(tier=text), f"tier = {text}", str(Tier(text).label))


def _price(text: str) -> Condition:
    micro = parse_price(text)
    return Condition(
        "price_max",
        Q(price_micro__lte=micro),
        f"price <= {price_text(micro)}",
        gettext("Price at most %(value)s") % {"value": price_text(micro)},
    )


def _cuda(text: str) -> Condition:
    match = re.fullmatch(r"(\d{1,2})(?:\.(\d{1,2}))?", text.translate(_DIGITS))
    if match is None:
        raise NotUnderstood(text=text[:40], unit="CUDA")
    least = (int(match[1]), int(match[2] or 0))
    known = Listing.objects.exclude(cuda_version="").order_by().values_list("cuda_version", flat=True).distinct()
    enough = [version for version in known if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= least]
    told = f"{least[0]}.{least[1]}"
    return Condition(
        "cuda_min", Q(cuda_version__in=enough), f"cuda >= {told}", gettext("CUDA from %(value)s") % {"value": told}
    )


def _number(
    name: str,
    *,
    column: str,
    echo: str,
    unit: str,
    words: Any,
    units: tuple[str, ...] = (),
    most: int = 1_000_000,
    whole: bool = False,
    times: int = 1,
) -> Callable[[str], Condition]:
    """A number of ``unit``, which may be written behind it; ``column`` holds ``times`` as many."""

    def read(text: str) -> Condition:
        match = _NUMBER.fullmatch(text.translate(_DIGITS))
        if match is None or (match[2] and match[2].lower() not in {unit.lower(), *units}):
            raise NotUnderstood(text=text[:40], unit=unit)
        value = Decimal(match[1])
        if whole and value != value.to_integral_value():
            raise NotUnderstood(text=text[:40], unit=unit)
        least = 1 if name == "gpus" else 0
        if not least <= value <= most:
            raise OutOfRange(least=least, most=f"{most:,}")
        bound = int(value) if whole else float(value * times)
        told = f"{value.normalize():f}"
        shown = cut(value, len(told.partition(".")[2]))
        return Condition(name, Q(**{f"{column}__gte": bound}), f"{echo} >= {told}", str(words) % {"value": shown})

    return read


FILTERS: dict[str, Filter] = {
    known.name: known
    for known in (
        Filter("model", _("GPU model"), "", _model),
        Filter(
            "gpus", _("GPUs, at least"), _("GPUs"),
            _number("gpus", column="gpus_free", echo="gpus", unit="GPUs", units=("gpu",), words=_("%(value)s GPUs free"), most=1000, whole=True),
        ),
        Filter("region", _("Region"), "", _region),
        Filter("price_max", _("Price, at most"), "USDC/h", _price),
        Filter(
            "reliability_min", _("Reliability, at least"), "",
            _number("reliability_min", column="reliability", echo="reliability", unit="points", units=("%",), words=_("Reliability from %(value)s"), most=100),
        ),
        Filter("tier", _("Tier"), "", _tier),
        Filter("country", _("Country"), "", _country),
        Filter(
            "vram_min", _("VRAM per GPU, at least"), "GB",
            _number("vram_min", column="vram_gib", echo="vram", unit="GB", units=("gib", "g"), words=_("VRAM from %(value)s GB"), most=10_000),
        ),
        Filter("cuda_min", _("CUDA, at least"), "", _cuda),
        Filter(
            "performance_min", _("Performance, at least"), "%",
            _number("performance_min", column="performance", echo="performance", unit="%", words=_("Performance from %(value)s %%"), most=200),
        ),
        Filter(
            "download_min", _("Download, at least"), "Gbps",
            _number("download_min", column="download_mbps", echo="download", unit="Gbps", units=("gbit/s", "g"), words=_("Download from %(value)s Gbps"), most=1000, times=1000),
        ),
        Filter(
            "upload_min", _("Upload, at least"), "Gbps",
            _number("upload_min", column="upload_mbps", echo="upload", unit="Gbps", units=("gbit/s", "g"), words=_("Upload from %(value)s Gbps"), most=1000, times=1000),
        ),
        Filter(
            "disk_read_min", _("SSD read, at least"), "MB/s",
            _number("disk_read_min", column="disk_read_mb_s", echo="disk_read", unit="MB/s", words=_("SSD read from %(value)s MB/s"), most=1_000_000),
        ),
    )
}  # fmt: skip

_COLUMNS = {
    "rank": "rank",
    "price": "price_micro",
    "reliability": "reliability",
    "performance": "performance",
    "free": "gpus_free",
    "vram": "vram_gib",
    "download": "download_mbps",
    "disk_read": "disk_read_mb_s",
}
SORTS: dict[str, list[Any]] = {name: [F(column).asc(nulls_last=True)] for name, column in _COLUMNS.items()} | {
    f"-{name}": [F(column).desc(nulls_last=True)] for name, column in _COLUMNS.items()
}
