"""Structured logs: one event a line, as JSON in production and as text in embedded mode."""

import logging
import logging.config
from typing import Any

import structlog


def configure(options: dict[str, Any]) -> None:
    """``options``: ``json`` (bool) and ``level``. Django calls this with the setting ``LOGGING``."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer = structlog.processors.JSONRenderer() if options["json"] else structlog.dev.ConsoleRenderer(colors=False)
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "structured": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "foreign_pre_chain": shared,
                    "processors": [
                        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                        structlog.processors.format_exc_info,
                        renderer,
                    ],
                }
            },
            "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "structured"}},
            "root": {"handlers": ["console"], "level": options["level"]},
            "loggers": {
                "httpx": {"level": "WARNING"},
                "httpcore": {"level": "WARNING"},
                "fontTools": {"level": "WARNING"},
                "axes": {"level": "WARNING"},
            },
        }
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
