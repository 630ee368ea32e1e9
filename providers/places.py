"""Countries and continents: codes in the database, names from CLDR in the reader's language."""

from babel import Locale
from django.utils.translation import get_language

# ISO 3166-1 codes by continent, after the UN's M49 (Cyprus and Turkey with Asia, Russia with Europe).
_COUNTRIES = {
    "AF": (
        "AO BF BI BJ BW CD CF CG CI CM CV DJ DZ EG EH ER ET GA GH GM GN GQ GW IO KE KM LR LS LY MA MG ML MR MU MW MZ NA NE "
        "NG RE RW SC SD SH SL SN SO SS ST SZ TD TF TG TN TZ UG YT ZA ZM ZW"
    ),
    "AN": "AQ BV GS HM",
    "AS": (
        "AE AF AM AZ BD BH BN BT CN CY GE HK ID IL IN IQ IR JO JP KG KH KP KR KW KZ LA LB LK MM MN MO MV MY NP OM PH PK PS "
        "QA SA SG SY TH TJ TL TM TR TW UZ VN YE"
    ),
    "EU": (
        "AD AL AT AX BA BE BG BY CH CZ DE DK EE ES FI FO FR GB GG GI GR HR HU IE IM IS IT JE LI LT LU LV MC MD ME MK MT NL "
        "NO PL PT RO RS RU SE SI SJ SK SM UA VA XK"
    ),
    "NA": (
        "AG AI AW BB BL BM BQ BS BZ CA CR CU CW DM DO GD GL GP GT HN HT JM KN KY LC MF MQ MS MX NI PA PM PR SV SX TC TT US "
        "VC VG VI"
    ),
    "OC": "AS AU CC CK CX FJ FM GU KI MH MP NC NF NR NU NZ PF PG PN PW SB TK TO TV UM VU WF WS",
    "SA": "AR BO BR CL CO EC FK GF GY PE PY SR UY VE",
}
_REGION = {country: region for region, countries in _COUNTRIES.items() for country in countries.split()}
# What CLDR calls the continents.
_TERRITORY = {"AF": "002", "AN": "AQ", "AS": "142", "EU": "150", "NA": "003", "OC": "009", "SA": "005"}

COUNTRIES = tuple(sorted(_REGION))
REGIONS = tuple(sorted(_TERRITORY))


def region_of(country: str) -> str:
    """The continent's code, "" for a code that is no country.

    >>> region_of("EG"), region_of("DE"), region_of("")
    ('AF', 'EU', '')
    """
    return _REGION.get(country.upper(), "")


def country_name(country: str) -> str:
    """In the active language; the code itself where CLDR has no name.

    >>> country_name("DE")
    'Germany'
    """
    return _name(country.upper(), country)


def region_name(region: str) -> str:
    """In the active language.

    >>> region_name("NA")
    'North America'
    """
    return _name(_TERRITORY.get(region.upper(), ""), region)


def _name(territory: str, otherwise: str) -> str:
    names = Locale.parse((get_language() or "en").replace("-", "_")).territories
    return names.get(territory, otherwise)
