"""Files for the bank, what is in them, and the bank's answers. Accounts are shown masked; downloading a file is recorded."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Count, Q, QuerySet, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.decorators import display
from unfold.widgets import UnfoldAdminFileFieldWidget, UnfoldAdminTextareaWidget

from gpunex.kit import show
from gpunex.kit.conflicts import retrying
from gpunex.kit.refusals import Refusal
from gpunex.kit.registers import ReadOnlyAdmin, ReadOnlyInline
from payouts.bank import RAILS, files, imports
from payouts.bank.answers import MOST_BYTES
from payouts.bank.transfers import WITH_THE_BANK
from payouts.models import BankFile, BankImport, BankTransfer, Payout, PayoutRun, Rail

LINES_A_PAGE = 100


class YesForm(forms.Form):
    """Nothing to fill in: the yes is the button."""


class NoteForm(forms.Form):
    note = forms.CharField(
        label=_lazy("Reason"),
        max_length=140,
        widget=UnfoldAdminTextareaWidget({"rows": 2}),
        help_text=_lazy("Where the bank’s statement shows the debit. Kept with the change."),
    )


class MakeForm(forms.Form):
    run = forms.UUIDField(widget=forms.HiddenInput)


class AnswerForm(forms.Form):
    file = forms.FileField(
        label=_lazy("The bank’s answer"),
        widget=UnfoldAdminFileFieldWidget,
        help_text=_lazy("pain.002, camt.053 or camt.054 (XML), or a file of ACH returns."),
        error_messages={
            "required": _lazy("Choose the file that the bank gave you."),
            "empty": _lazy("This file is empty."),
        },
    )


class BankTransferInline(ReadOnlyInline):
    model = BankTransfer
    fields = ["end_to_end_id", "trace_number", "amount", "destination", "state", "bank_reason"]
    readonly_fields = fields
    per_page = 50
    show_change_link = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[BankTransfer]:
        return super().get_queryset(request).select_related("payout").order_by("pk")

    @display(description=_lazy("amount"))
    def amount(self, transfer: BankTransfer) -> str:
        return transfer.amount

    @display(description=_lazy("paid to"))
    def destination(self, transfer: BankTransfer) -> str:
        return transfer.payout.destination


@admin.register(BankFile)
class BankFileAdmin(ReadOnlyAdmin):
    """Made, downloaded, handed over, answered. Adding one shows the runs that wait for theirs."""

    list_display = ["message_id", "rail", "run", "transfers_in_it", "sum_of_it", "state", "created_by", "created_at"]
    list_filter = ["state", "rail", "created_at"]
    search_fields = ["=message_id", "=sha256", "=transfers__end_to_end_id"]
    list_select_related = ["run", "created_by"]
    ordering = ["-pk"]
    exclude = ["content"]
    inlines = [BankTransferInline]
    change_form_outer_before_template = "admin/decision.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[BankFile]:
        return super().get_queryset(request).annotate(count=Count("transfers"), cents=Sum("transfers__amount_cents"))

    @display(description=_lazy("transfers"))
    def transfers_in_it(self, file: BankFile) -> int:
        return file.count

    @display(description=_lazy("sum"))
    def sum_of_it(self, file: BankFile) -> str:
        cents = file.cents or 0
        return f"{cents // 100:,}.{cents % 100:02d} {'EUR' if file.rail == Rail.SEPA else 'USD'}"

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("payouts.add_bankfile")

    # Making one

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        sent = MakeForm(request.POST or None)
        refused = ""
        if request.method == "POST" and sent.is_valid():
            run = PayoutRun.objects.filter(public_id=sent.cleaned_data["run"]).first()
            try:
                made = retrying(files.make)(run=run, by=request.user, at=timezone.now()) if run else None
            except Refusal as refusal:
                refused = str(refusal)
            else:
                if made is not None:
                    return self._made(request, made)
        waiting = _waiting_runs()
        decisions = []
        for run in waiting:
            form = MakeForm(request.POST) if refused and request.POST.get("run") == str(run.public_id) else None
            if form is not None and form.is_valid():
                form.add_error(None, refused)
            decisions.append(
                {
                    "title": f"{run.get_rail_display()} · {run}",
                    "form": form or MakeForm(initial={"run": run.public_id}),
                    "submit": _("Make the file: %(count)s payouts, %(amount)s USDC")
                    % {"count": run.count, "amount": show.usdc(run.micro)},
                }
            )
        context = self.admin_site.each_context(request) | {
            "title": _("Make a file for the bank"),
            "opts": self.model._meta,
            "note": refused
            or (
                _("Each of these runs has approved payouts that are in no file yet.")
                if waiting
                else _("No run waits for a file.")
            ),
            "decisions": decisions,
        }
        return TemplateResponse(request, "admin/payouts/bank.html", context, status=422 if refused else 200)

    def _made(self, request: HttpRequest, made: files.Made) -> HttpResponse:
        if made.left_out:
            messages.warning(
                request,
                _("Left out and held for review: %(payouts)s.") % {"payouts": ", ".join(str(p) for p in made.left_out)},
            )
        if made.file is None:
            return redirect("admin:payouts_payout_changelist")
        if made.new:
            self.log_addition(request, made.file, _("Made"))
            messages.success(request, _("The file is made. Download it, hand it to the bank, then record that here."))
        else:
            messages.info(request, _("This run’s file exists already: it is the same one."))
        return redirect("admin:payouts_bankfile_change", made.file.pk)

    # What can be done with one

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        file = self.get_object(request, object_id)
        context = dict(extra_context or {})
        status = 200
        may = request.user.has_perm("payouts.change_bankfile")
        if request.method == "POST" and file is not None:
            if not may:
                raise PermissionDenied
            decision = request.POST.get("decision", "")
            form = (NoteForm if decision == "settle" else YesForm)(request.POST)
            if form.is_valid():
                try:
                    return self._carry_out(decision, file, form, request)
                except Refusal as refusal:
                    form.add_error(None, str(refusal))
            status = 422
            request.method = "GET"  # shown again as a page: of the row itself nothing is edited here
            context["decisions"] = self._decisions(file, sent=decision, form=form)
        if file is not None and may:
            context = {"note": _next(file), "decisions": self._decisions(file)} | context
        response = super().change_view(request, object_id, form_url, context)
        response.status_code = status if response.status_code == 200 else response.status_code
        return response

    def _carry_out(self, decision: str, file: BankFile, form: forms.Form, request: HttpRequest) -> HttpResponse:
        if decision == "download":
            data = files.hand_out(file)
            self.log_change(request, file, _("Downloaded"))
            response = HttpResponse(data, content_type="application/octet-stream")
            response["Content-Disposition"] = f'attachment; filename="{files.filename(file)}"'
            response["Cache-Control"] = "no-store"
            return response
        if decision == "exported":
            retrying(files.mark_exported)(file=file, by=request.user, at=timezone.now())
            self.log_change(request, file, _("Handed to the bank"))
            messages.success(request, _("Recorded. Import the bank’s answer when it comes."))
        elif decision == "settle":
            note = form.cleaned_data["note"]
            count = imports.settle_ach_file(file=file, by=request.user, note=note, at=timezone.now())
            self.log_change(request, file, _("Settled, %(count)s transfers: %(note)s") % {"count": count, "note": note})
            messages.success(request, _("Transfers that settled: %(count)s.") % {"count": count})
        return redirect("admin:payouts_bankfile_change", file.pk)

    def _decisions(self, file: BankFile, *, sent: str = "", form: forms.Form | None = None) -> list[dict[str, Any]]:
        decisions: list[dict[str, Any]] = [
            {"name": "download", "title": files.filename(file), "form": YesForm(), "submit": _("Download the file")}
        ]
        if file.exported_at is None:
            decisions.append(
                {
                    "name": "exported",
                    "title": _("Handed to the bank"),
                    "form": YesForm(),
                    "submit": _("I have handed this file to the bank"),
                }
            )
        elif file.rail == Rail.ACH and file.transfers.filter(state__in=WITH_THE_BANK).exists():
            decisions.append(
                {
                    "name": "settle",
                    "title": _("Settled"),
                    "form": NoteForm(),
                    "submit": _("What did not come back has settled"),
                }
            )
        for decision in decisions:
            if decision["name"] == sent and form is not None:
                decision["form"] = form
        return decisions


def _next(file: BankFile) -> str:
    """What to do next, in a sentence."""
    if file.exported_at is None:
        return _("Download it, hand it to the bank once, then record that here. The bytes are the same each time.")
    told = _("%(who)s handed it to the bank on %(when)s; do not upload it again.") % {
        "who": file.exported_by,
        "when": show.moment(file.exported_at),
    }
    if file.rail == Rail.ACH and file.transfers.filter(state__in=WITH_THE_BANK).exists():
        day = show.day_text(files.settles_from(file))
        rest = _("Import the returns; after %(day)s what did not come back has settled.") % {"day": day}
        return f"{told} {rest}"
    return f"{told} " + _("Import the bank’s answers as they come.")


def _waiting_runs() -> list[PayoutRun]:
    """Runs with approved payouts that are in no file, oldest first."""
    waiting = Q(payouts__state=Payout.State.APPROVED, payouts__bank_transfer__state=BankTransfer.State.WAITING)
    return list(
        PayoutRun.objects.filter(rail__in=RAILS)
        .filter(waiting)
        .annotate(count=Count("payouts", filter=waiting), micro=Sum("payouts__amount_micro", filter=waiting))
        .order_by("execute_on", "pk")[:50]
    )


@admin.register(BankTransfer)
class BankTransferAdmin(ReadOnlyAdmin):
    list_display = [
        "end_to_end_id",
        "organisation",
        "shown_amount",
        "destination",
        "shown_state",
        "bank_reason",
        "file",
    ]
    list_filter = ["state", "currency", "settled_at"]
    search_fields = ["=end_to_end_id", "=trace_number", "=payout__public_id", "payout__organisation__name"]
    list_select_related = ["payout__organisation", "file"]
    ordering = ["-pk"]

    @display(description=_lazy("organisation"))
    def organisation(self, transfer: BankTransfer) -> str:
        return str(transfer.payout.organisation)

    @display(description=_lazy("amount"), ordering="amount_cents")
    def shown_amount(self, transfer: BankTransfer) -> str:
        return transfer.amount

    @display(description=_lazy("paid to"))
    def destination(self, transfer: BankTransfer) -> str:
        return transfer.payout.destination

    @display(
        description=_lazy("state"),
        label={
            BankTransfer.State.WAITING: "info",
            BankTransfer.State.IN_FILE: "info",
            BankTransfer.State.EXPORTED: "info",
            BankTransfer.State.ACKNOWLEDGED: "info",
            BankTransfer.State.SETTLED: "success",
            BankTransfer.State.REJECTED: "danger",
            BankTransfer.State.RETURNED: "danger",
        },
    )
    def shown_state(self, transfer: BankTransfer) -> tuple[str, str]:
        return transfer.state, transfer.get_state_display()


@admin.register(BankImport)
class BankImportAdmin(ReadOnlyAdmin):
    """The bank's answers as they were read; adding one uploads it."""

    list_display = ["filename", "format", "count_of_lines", "problems", "imported_by", "imported_at"]
    list_filter = ["format", "imported_at"]
    search_fields = ["filename", "=sha256"]
    list_select_related = ["imported_by"]
    ordering = ["-pk"]
    exclude = ["content", "lines"]
    change_form_outer_before_template = "admin/payouts/bank_lines.html"

    @display(description=_lazy("lines"))
    def count_of_lines(self, row: BankImport) -> int:
        return len(row.lines)

    @display(description=_lazy("do not fit"))
    def problems(self, row: BankImport) -> int:
        return sum(line["did"] == imports.PROBLEM for line in row.lines)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("payouts.add_bankimport")

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = AnswerForm(request.POST or None, request.FILES or None)
        if request.method == "POST" and form.is_valid():
            upload = form.cleaned_data["file"]
            try:
                imported = imports.read_answer(
                    data=upload.read(MOST_BYTES + 1), filename=upload.name, by=request.user, at=timezone.now()
                )
            except Refusal as refusal:
                form.add_error("file", str(refusal))
            else:
                if imported.new:
                    self.log_addition(request, imported.answer, _("Imported"))
                    messages.success(request, _("Read. What each line did is below."))
                else:
                    messages.info(request, _("This very file was read before: nothing was done again."))
                return redirect("admin:payouts_bankimport_change", imported.answer.pk)
        context = self.admin_site.each_context(request) | {
            "title": _("Import an answer of the bank"),
            "opts": self.model._meta,
            "form": form,
        }
        return TemplateResponse(request, "admin/payouts/bank_import.html", context, status=422 if form.errors else 200)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, object_id)
        context = dict(extra_context or {})
        if row is not None:
            # What needs a person comes first; within that, as the bank wrote it.
            order = {imports.PROBLEM: 0, imports.UNMATCHED: 2}
            lines = sorted(row.lines, key=lambda line: (order.get(line["did"], 1), line["line"]))
            page = Paginator(lines, LINES_A_PAGE).get_page(request.GET.get("lines"))
            context |= {"lines_page": page, "table": _table(list(page))}
        return super().change_view(request, object_id, form_url, context)


def _why(line: dict[str, Any]) -> str:
    why = str(imports.WHY.get(line["why"], line["why"]))
    if line["why"] in ("amount", "currency"):
        return _("%(why)s: ours is %(amount)s") % {"why": why, "amount": line["ours"]}
    return why


def _table(lines: list[dict[str, Any]]) -> dict[str, Any]:
    headers = [_("line"), _("reference"), _("the bank says"), _("amount"), _("what it did"), _("why")]
    rows = []
    for line in lines:
        cents = line["amount_cents"]
        reference = line["end_to_end_id"] or line["trace_number"] or line["message_id"] or line["bank_reference"] or "–"
        if line["payout"]:
            search = f"{reverse('admin:payouts_payout_changelist')}?q={line['payout']}"
            reference = format_html(
                '<a class="text-primary-600" href="{}"><bdi dir="ltr">{}</bdi></a>', search, reference
            )
        rows.append(
            [
                line["line"],
                reference,
                " ".join(filter(None, [line["status"], line["reason"]])),
                "–" if cents is None else f"{cents // 100:,}.{cents % 100:02d} {line['currency']}",
                imports.DID.get(line["did"], line["did"]),
                _why(line),
            ]
        )
    return {"headers": headers, "rows": rows}
