from django.contrib import admin

from gpunex.kit.registers import ReadOnlyAdmin
from gpunex.outbox.models import Message


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    """What was sent and what waits. Never the bodies: they hold links that sign in."""

    list_display = ["subject", "to", "event", "state", "tries", "created_at", "sent_at"]
    list_filter = ["state", "event"]
    search_fields = ["to", "subject", "key"]
    ordering = ["-created_at"]
    exclude = ["body"]
