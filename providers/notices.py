"""What an applicant and a provider are told. See gpunex.accounts.notices for how an event becomes a notice and a mail."""

from django.utils.translation import gettext_lazy as _

from gpunex.accounts.notices import Event
from gpunex.policy.models import Tier

_PATH = "/roles/applications/{application}"

SUBMITTED = Event(
    name="application_submitted",
    subject=_("Application received: %(gpus)s"),
    paragraphs=(
        _(
            "Your application to provide %(gpus)s has arrived. A person reads it and answers by %(due_at)s at the latest."
        ),
        _("You can look at it, or withdraw it, at any time until then."),
    ),
    action=_("Open the application"),
    path=_PATH,
)
RESUBMITTED = Event(
    name="application_resubmitted",
    subject=_("Your answer has arrived: %(gpus)s"),
    paragraphs=(
        _("Your application is back in the review, with your answer. It is decided by %(due_at)s at the latest."),
    ),
    action=_("Open the application"),
    path=_PATH,
)
NEEDS_INFO = Event(
    name="application_needs_info",
    subject=_("A question about your application"),
    paragraphs=(
        _("Before we decide on your application to provide %(gpus)s, we need to know more:"),
        "%(message)s",
        _("Answer on the application's page and send it again. Everything that you typed is still there."),
    ),
    action=_("Answer and send again"),
    path="/roles/apply",
    state="warn",
)
REJECTED = Event(
    name="application_rejected",
    subject=_("Your application was not accepted"),
    paragraphs=(
        _("We have read your application to provide %(gpus)s and cannot accept it as it is. The reason:"),
        "%(message)s",
        _("If that changes, apply again: your answers are kept and filled in."),
    ),
    action=_("Open the application"),
    path=_PATH,
    state="bad",
)
WITHDRAWN = Event(
    name="application_withdrawn",
    subject=_("Application withdrawn"),
    paragraphs=(
        _("Your application to provide %(gpus)s is withdrawn and out of the review."),
        _("You can apply again at any time; your answers are kept and filled in."),
    ),
    action=_("Open the application"),
    path=_PATH,
)

_INSTALL = (
    _(
        "Run the line below on each machine. Docker %(docker)s or newer and the NVIDIA Container Toolkit %(toolkit)s or newer must be there; the installer checks both and then asks for your token."
    ),
    _("Your enrolment token, for one machine, valid until %(expires_at)s: %(secret_token)s"),
    _(
        "For further machines make an API key in the dashboard. The machine shows as Connected within a few minutes, benchmarks start by themselves, and then you set your price."
    ),
)
# One event a tier, so that the tier is a word of the reader's language and not a field.
APPROVED = {
    Tier.COMMUNITY: Event(
        name="application_approved_community",
        subject=_("Approved: connect your machines to GPUnex"),
        paragraphs=(
            _(
                "Your application is approved: %(gpus)s join the marketplace in the community tier. The platform keeps %(fee)s %% of what renters pay; you keep %(kept)s %%."
            ),
            "%(message)s",
            *_INSTALL,
        ),
        command="curl -fsSL %(site)s/agent | bash",
        action=_("Open the installation page"),
        path="/provider/install",
        state="ok",
    ),
    Tier.ENTERPRISE: Event(
        name="application_approved_enterprise",
        subject=_("Approved: connect your machines to GPUnex"),
        paragraphs=(
            _(
                "Your application is approved: %(gpus)s join the marketplace in the enterprise tier. The platform keeps %(fee)s %% of what renters pay; you keep %(kept)s %%."
            ),
            "%(message)s",
            *_INSTALL,
        ),
        command="curl -fsSL %(site)s/agent | bash",
        action=_("Open the installation page"),
        path="/provider/install",
        state="ok",
    ),
}
