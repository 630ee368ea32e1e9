"""The demonstration's market: who offers what, where, at which price. Names are invented."""

from dataclasses import dataclass
from decimal import Decimal

from gpunex.demo.people import PROVIDER, PROVIDER_AR, Person
from gpunex.policy.models import Tier


@dataclass(frozen=True)
class Host:
    """A simulated machine: its name, its cards as the agent's profile, and the catalogue model they are."""

    name: str
    profile: str
    model: str  # GpuModel.name


@dataclass(frozen=True)
class House:
    """A provider: one site, its machines and its prices (USDC per GPU per hour)."""

    person: Person
    company: str
    tier: Tier
    country: str
    city: str
    zone: str
    gbps: Decimal
    commitment_months: int
    hosts: tuple[Host, ...]
    prices: dict[str, str]
    datacenter_region: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """GPUs a model, over all hosts."""
        found: dict[str, int] = {}
        for host in self.hosts:
            found[host.model] = found.get(host.model, 0) + int(host.profile.rpartition("x")[2])
        return found


def _house(
    email: str,
    name: str,
    company: str,
    tier: Tier,
    country: str,
    city: str,
    zone: str,
    gbps: str,
    months: int,
    hosts: str,
    prices: str,
) -> House:
    """Hosts as "name:profile×count …", prices as "profile=price …"."""
    models = {
        "h100-sxm": "H100 80GB",
        "h100-pcie": "H100 80GB",
        "a100-40": "A100 40GB",
        "a100-80": "A100 80GB",
        "l40s": "L40S 48GB",
        "l4": "L4 24GB",
        "rtx4090": "RTX 4090 24GB",
        "a6000": "RTX A6000 48GB",
    }
    made = []
    for text in hosts.split():
        host, _, profile = text.partition(":")
        made.append(Host(host, profile, models[profile.rpartition("x")[0]]))
    person = next((known for known in (PROVIDER, PROVIDER_AR) if known.email == email), Person("provider", email, name))
    asked = dict(pair.split("=") for pair in prices.split())
    return House(
        person,
        company,
        tier,
        country,
        city,
        zone,
        Decimal(gbps),
        months,
        tuple(made),
        {models[card]: price for card, price in asked.items()},
    )


E, C = Tier.ENTERPRISE, Tier.COMMUNITY
HOUSES: tuple[House, ...] = (
    _house("provider@gpunex.example", "", "Rawasi Compute", E, "DE", "Frankfurt", "Europe/Berlin", "10", 12,
           "fra-a1:h100-sxmx8 fra-b2:l40sx4 fra-c3:a6000x6", "h100-sxm=2.05 l40s=0.82 a6000=0.46"),
    _house("mazwid@gpunex.example", "", "حوسبة الخليج", E, "AE", "Dubai", "Asia/Dubai", "10", 12,
           "dxb-01:a100-80x8 dxb-02:l40sx4", "a100-80=1.32 l40s=0.88"),
    _house("ops@taiga.example", "Aino Korhonen", "Taiga Data Oy", E, "FI", "Helsinki", "Europe/Helsinki", "10", 12,
           "hel-04:h100-sxmx8 hel-05:a100-80x8 hel-06:l4x8", "h100-sxm=1.95 a100-80=1.24 l4=0.29"),
    _house("noc@polder.example", "Sanne de Wit", "Polder Systems", E, "NL", "Amsterdam", "Europe/Amsterdam", "25", 12,
           "ams-h9:h100-pciex8 ams-k2:l40sx8", "h100-pcie=2.10 l40s=0.79"),
    _house("team@liffey.example", "Ciara Byrne", "Liffey Racks", E, "IE", "Dublin", "Europe/Dublin", "25", 6,
           "dub-07:h100-sxmx8 dub-08:a100-40x8", "h100-sxm=2.29 a100-40=0.98"),
    _house("hello@cascade.example", "Dana Whitfield", "Cascade GPU", E, "US", "Seattle", "America/Los_Angeles", "10", 12,
           "sea-11:h100-sxmx8 sea-12:a100-80x4 sea-13:l4x4", "h100-sxm=2.18 a100-80=1.29 l4=0.31"),
    _house("ops@prairie.example", "Luis Ortega", "Prairie Cloud", E, "US", "Dallas", "America/Chicago", "10", 6,
           "dfw-21:h100-pciex4 dfw-22:a6000x8", "h100-pcie=1.99 a6000=0.44"),
    _house("admin@maple.example", "Chloé Tremblay", "Érable Calcul", C, "CA", "Montréal", "America/Toronto", "2.5", 6,
           "yul-01:rtx4090x4 yul-02:rtx4090x2", "rtx4090=0.34"),
    _house("infra@andes.example", "Valentina Rojas", "Andes Cómputo", C, "CL", "Santiago", "America/Santiago", "1", 6,
           "scl-03:rtx4090x4 scl-04:a6000x4", "rtx4090=0.37 a6000=0.49"),
    _house("me@vitosha.example", "Georgi Petrov", "Vitosha Lab", C, "BG", "Sofia", "Europe/Sofia", "1", 3,
           "sof-08:rtx4090x2", "rtx4090=0.28"),
    _house("rig@donau.example", "Lukas Gruber", "Donau Rechner", C, "AT", "Vienna", "Europe/Vienna", "1", 3,
           "vie-05:rtx4090x2 vie-06:a6000x2", "rtx4090=0.33 a6000=0.47"),
    _house("ops@meseta.example", "Irene Campos", "Meseta GPU", C, "ES", "Madrid", "Europe/Madrid", "5", 6,
           "mad-01:a100-40x4 mad-02:rtx4090x4", "a100-40=0.92 rtx4090=0.31"),
    _house("contact@tejo.example", "Duarte Lopes", "Tejo Compute", E, "PT", "Lisbon", "Europe/Lisbon", "10", 6,
           "lis-02:h100-pciex8 lis-03:l4x4", "h100-pcie=2.35 l4=0.33"),
    _house("hq@sakura.example", "Haruka Ito", "Sumida Compute", E, "JP", "Tokyo", "Asia/Tokyo", "10", 12,
           "nrt-01:h100-sxmx8 nrt-02:l40sx4", "h100-sxm=2.42 l40s=0.95"),
    _house("noc@straits.example", "Wei Ling Tan", "Straits AI", E, "SG", "Singapore", "Asia/Singapore", "10", 6,
           "sin-01:a100-80x8 sin-02:l4x8", "a100-80=1.41 l4=0.35"),
    _house("dev@deccan.example", "Rohan Iyer", "Deccan Nodes", C, "IN", "Bengaluru", "Asia/Kolkata", "1", 3,
           "blr-05:rtx4090x4 blr-06:l4x2", "rtx4090=0.30 l4=0.27"),
    _house("root@southern.example", "Mia Walker", "Southern Cross GPU", C, "AU", "Sydney", "Australia/Sydney", "1", 6,
           "syd-02:rtx4090x4", "rtx4090=0.39"),
    _house("it@atlas.example", "Youssef Alami", "Atlas Calcul", C, "MA", "Casablanca", "Africa/Casablanca", "1", 6,
           "cmn-01:a6000x4 cmn-02:rtx4090x2", "a6000=0.43 rtx4090=0.29"),
    _house("lab@karoo.example", "Thandi Nkosi", "Karoo Compute", C, "ZA", "Cape Town", "Africa/Johannesburg", "1", 3,
           "cpt-01:rtx4090x2", "rtx4090=0.35"),
)  # fmt: skip

RENTERS: tuple[tuple[Person, str], ...] = (
    (Person("renter", "ml@lumen.example", "Priya Nair"), "Lumen Vision"),
    (Person("renter", "research@umbra.example", "Tomás Silva"), "Umbra Research"),
    (Person("renter", "render@kite.example", "Hana Novak"), "Kite Studio"),
    (Person("renter", "ops@sable.example", "Omar Farouk"), "Sable Speech"),
    (Person("renter", "team@borealis.example", "Ingrid Dahl"), "Borealis Bio"),
)

# An application that waits for review, so that the administrator's queue is not empty.
APPLICANT = Person("applicant", "applicant@gpunex.example", "Karim Mansour")
