"""Settings, all of them, from the environment.

Embedded mode (``GPUNEX_EMBEDDED=1``: the demonstration and the tests) gets its values from ``gpunex.embedded``. Any other
mode refuses to start unless its real services and keys are given, and names each one that is missing.
"""

import os
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.templatetags.static import static
from django.utils.csp import CSP
from django.utils.translation import gettext_lazy as _

BASE_DIR = Path(__file__).resolve().parent.parent
EMBEDDED = os.environ.get("GPUNEX_EMBEDDED", "") == "1"
REQUIRED = {
    "SECRET_KEY": "a long random text that signs sessions",
    "FIELD_KEYS": "Fernet keys separated by commas, the newest first, that encrypt fields",
    "DATABASE_URL": "PostgreSQL, as postgres://user:password@host:5432/name",
    "REDIS_URL": "Redis or Valkey, as redis://host:6379/0",
    "SOLANA_RPC_URL": "two or more RPC node addresses of different hosts, separated by commas",
    "TREASURY_KEY_FILE": "path of the treasury's key, a JSON array as solana-keygen writes it, mode 0600",
    "USDC_MINT": "the mint address of USDC on that chain",
    "SOLANA_GENESIS_HASH": "the genesis hash of that chain, checked at start",
    "PUBLIC_URL": "the address people reach the site at, as https://gpunex.com",
    "EMAIL_URL": "the mail server, as smtp://user:password@host:587",
}


# Embedded mode knows these only once its chain has started, or needs none of them.
_LATER_WHEN_EMBEDDED = {"TREASURY_KEY_FILE", "USDC_MINT", "SOLANA_GENESIS_HASH", "PUBLIC_URL", "EMAIL_URL"}
_missing = [name for name in REQUIRED if not os.environ.get(name) and not (EMBEDDED and name in _LATER_WHEN_EMBEDDED)]
if _missing:
    raise ImproperlyConfigured(
        "GPUnex does not start without its services and keys. Missing from the environment:\n"
        + "\n".join(f"  {name}: {REQUIRED[name]}" for name in _missing)
        + "\nTo try GPUnex without any of them, run `make demo`."
    )


def _env(name: str, default: str = "") -> str:
    return os.environ.get(name, default)


def _flag(name: str, default: bool = False) -> bool:
    text = os.environ.get(name, "1" if default else "0")
    if text not in {"0", "1"}:
        raise ImproperlyConfigured(f"{name} is 0 or 1, not {text!r}")
    return text == "1"


def _database(url: str) -> dict[str, object]:
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ImproperlyConfigured(f"DATABASE_URL must be a PostgreSQL address, not {parts.scheme}://")
    query = parse_qs(parts.query)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.get("host", [parts.hostname or ""])[0],
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": int(_env("DATABASE_CONN_MAX_AGE", "0")),
        "OPTIONS": {"application_name": "gpunex", "connect_timeout": 5},
    }


# --- Who we are ---
SECRET_KEY = _env("SECRET_KEY")
FIELD_KEYS = [key.strip().encode() for key in _env("FIELD_KEYS").split(",") if key.strip()]
DEBUG = _flag("DEBUG")
PUBLIC_URL = _env("PUBLIC_URL", "http://localhost:8000").rstrip("/")
ALLOWED_HOSTS = [host for host in _env("ALLOWED_HOSTS", PUBLIC_URL.split("//")[-1].split(":")[0]).split(",") if host]
if EMBEDDED:
    # Never beyond loopback: the faucet and the simulated machines exist only here.
    ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", "testserver"]
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]

# --- Services ---
DATABASES = {"default": _database(_env("DATABASE_URL"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
REDIS_URL = _env("REDIS_URL")
CACHES = {"default": {"BACKEND": "gpunex.kit.cache.ForgivingRedisCache", "LOCATION": REDIS_URL, "KEY_PREFIX": "gpunex"}}
CELERY_BROKER_URL = (
    REDIS_URL.replace("unix://", "redis+socket://").split("?")[0] if REDIS_URL.startswith("unix://") else REDIS_URL
)
SOLANA_RPC_URLS = [url.strip() for url in _env("SOLANA_RPC_URL").split(",") if url.strip()]
if not EMBEDDED and len(set(SOLANA_RPC_URLS)) < 2:
    # One node's word would be enough to make money from nothing, or to sign a payout twice.
    raise ImproperlyConfigured(
        "SOLANA_RPC_URL needs two different nodes at least, separated by a comma: what moves money is asked of both."
    )
SOLANA_GENESIS_HASH = _env("SOLANA_GENESIS_HASH")
SOLANA_EXPLORER = _env("SOLANA_EXPLORER", "" if EMBEDDED else "https://explorer.solana.com/tx/{signature}")
TREASURY_KEY_FILE = Path(_env("TREASURY_KEY_FILE"))
USDC_MINT = _env("USDC_MINT")
FAUCET_KEY_FILE = TREASURY_KEY_FILE.parent / "faucet.json" if EMBEDDED else None
METRICS_TOKEN = _env("METRICS_TOKEN")
AGENT_IMAGE = _env("AGENT_IMAGE", "gpunex/agent:latest")
# Simulated machines are told apart everywhere; whether they may be rented is a setting, on in embedded mode only.
SIMULATED_MACHINES_IN_MARKET = _flag("SIMULATED_MACHINES_IN_MARKET", default=EMBEDDED)

# How long a benchmark loads each card, in seconds.
BENCHMARK_SECONDS = int(_env("BENCHMARK_SECONDS", "4" if EMBEDDED else "40"))

# --- Our accounts at banks: whoever makes a file for the bank is told which of these are missing ---
# The demonstration's are accounts that banks publish as examples.
SEPA_DEBTOR_NAME = _env("SEPA_DEBTOR_NAME", "GPUnex demonstration" if EMBEDDED else "")
SEPA_DEBTOR_IBAN = _env("SEPA_DEBTOR_IBAN", "DE89370400440532013000" if EMBEDDED else "")
SEPA_DEBTOR_BIC = _env("SEPA_DEBTOR_BIC")
ACH_ORIGIN_NAME = _env("ACH_ORIGIN_NAME", "GPUnex demonstration" if EMBEDDED else "")
ACH_ORIGIN_ID = _env("ACH_ORIGIN_ID", "1123456789" if EMBEDDED else "")
ACH_ORIGIN_ROUTING = _env("ACH_ORIGIN_ROUTING", "021000021" if EMBEDDED else "")
ACH_ORIGIN_BANK = _env("ACH_ORIGIN_BANK", "Demonstration bank" if EMBEDDED else "")

# --- Mail ---
DEFAULT_FROM_EMAIL = _env("DEFAULT_FROM_EMAIL", "GPUnex <no-reply@gpunex.com>")
SERVER_EMAIL = DEFAULT_FROM_EMAIL
MAIL_DIR = _env("MAIL_DIR")
MAILERS: dict[str, dict[str, object]]
if EMBEDDED:
    MAILERS = {"default": {"BACKEND": "gpunex.outbox.folder.EmailBackend"}}
else:
    _mail = urlsplit(_env("EMAIL_URL"))
    if _mail.scheme not in {"smtp", "smtps"}:
        raise ImproperlyConfigured("EMAIL_URL must begin with smtp:// (STARTTLS) or smtps://")
    MAILERS = {
        "default": {
            "BACKEND": "django.core.mail.backends.smtp.EmailBackend",
            "OPTIONS": {
                "host": _mail.hostname or "",
                "port": _mail.port or (465 if _mail.scheme == "smtps" else 587),
                "username": unquote(_mail.username or ""),
                "password": unquote(_mail.password or ""),
                "use_ssl": _mail.scheme == "smtps",
                "use_tls": _mail.scheme == "smtp",
                "timeout": 20,
            },
        }
    }

# --- Applications ---
INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "axes",
    "rest_framework",
    "drf_spectacular",
    "gpunex.kit",
    "gpunex.policy",
    "gpunex.outbox",
    "gpunex.accounts",
    "providers",
    "reliability",
    "billing",
    "marketplace",
    "payouts",
    "gpunex.ops",
    "gpunex.demo",
]
MIDDLEWARE = [
    "gpunex.kit.requests.RequestIdMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "gpunex.kit.requests.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "gpunex.accounts.middleware.AdminDoorMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "gpunex.accounts.middleware.LanguageMiddleware",
    "gpunex.accounts.middleware.OrganisationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "gpunex.kit.requests.PageAboveMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "axes.middleware.AxesMiddleware",
]
ROOT_URLCONF = "gpunex.urls"
ASGI_APPLICATION = "gpunex.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "django.template.context_processors.csp",
                "gpunex.shell.context",
            ],
        },
    }
]

# --- Signing in ---
AUTH_USER_MODEL = "accounts.User"
SILENCED_SYSTEM_CHECKS = ["auth.W004"]  # unique by a constraint on lower(email), which the check does not know
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator",
        "OPTIONS": {"user_attributes": ("email", "full_name")},
    },
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_ADAPTER = "gpunex.accounts.adapter.AccountAdapter"
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_SIGNUP_FORM_CLASS = "gpunex.accounts.forms.SignupForm"
ACCOUNT_EMAIL_VERIFICATION = "mandatory"
ACCOUNT_CONFIRM_EMAIL_ON_GET = False
ACCOUNT_LOGIN_ON_EMAIL_CONFIRMATION = True
ACCOUNT_LOGOUT_ON_PASSWORD_CHANGE = True
# Another address is another way in: a session that somebody left open is not enough to add one.
ACCOUNT_REAUTHENTICATION_REQUIRED = True
# Long enough to fetch a hardware wallet between the question and the signature.
ACCOUNT_REAUTHENTICATION_TIMEOUT = 15 * 60
ACCOUNT_REAUTHENTICATION_METHODS = ("password", "mfa")
ACCOUNT_EMAIL_NOTIFICATIONS = True
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_DEFAULT_HTTP_PROTOCOL = PUBLIC_URL.split(":")[0]
MFA_ADAPTER = "gpunex.accounts.second_factor.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_TOTP_ISSUER = "GPUnex"
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_FORMS = {
    "add_webauthn": "gpunex.accounts.second_factor.AddPasskeyForm",
    "authenticate_webauthn": "gpunex.accounts.second_factor.PasskeyAsSecondFactorForm",
    "edit_webauthn": "gpunex.accounts.second_factor.RenamePasskeyForm",
    "login_webauthn": "gpunex.accounts.second_factor.SignInWithPasskeyForm",
    "reauthenticate_webauthn": "gpunex.accounts.second_factor.ConfirmWithPasskeyForm",
}
# A browser makes passkeys over https only, except on its own machine.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = EMBEDDED
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = 0.25
AXES_LOCKOUT_TEMPLATE = "account/locked_out.html"
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_USERNAME_FORM_FIELD = "login"
AXES_RESET_ON_SUCCESS = True

# --- Languages and time ---
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("ar", "العربية")]
LOCALE_PATHS = [BASE_DIR / "gpunex" / "locale"]
FORMAT_MODULE_PATH = ["gpunex.formats"]
USE_I18N = True
TIME_ZONE = "UTC"
USE_TZ = True
USE_THOUSAND_SEPARATOR = False

# --- Static files ---
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "gpunex" / "static"]
# Embedded mode serves the files where they lie.
STATIC_ROOT = None if EMBEDDED else Path(_env("STATIC_ROOT", str(BASE_DIR / "gpunex" / "static_built")))
_STATIC_BACKEND = (
    "django.contrib.staticfiles.storage.StaticFilesStorage"
    if EMBEDDED
    else "whitenoise.storage.CompressedManifestStaticFilesStorage"
)
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": _STATIC_BACKEND},
}
WHITENOISE_USE_FINDERS = WHITENOISE_AUTOREFRESH = EMBEDDED

# --- Safety of the browser's side ---
SECURE_CSP = {
    "default-src": [CSP.SELF],
    "img-src": [CSP.SELF, "data:"],
    "script-src": [CSP.SELF],
    "style-src": [CSP.SELF],
    "frame-ancestors": [CSP.NONE],
    "form-action": [CSP.SELF],
    "base-uri": [CSP.NONE],
    "object-src": [CSP.NONE],
}
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_NAME = "gpunex_session" if not EMBEDDED else f"gpunex_{_env('GPUNEX_CLUSTER', 'demo')}"
_HTTPS = PUBLIC_URL.startswith("https://")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _HTTPS
SECURE_SSL_REDIRECT = _HTTPS and _flag("SSL_REDIRECT", default=True)
SECURE_REDIRECT_EXEMPT = [r"^health/"]
SECURE_HSTS_SECONDS = int(_env("HSTS_SECONDS", "31536000" if _HTTPS else "0"))
if _flag("BEHIND_PROXY"):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    MIDDLEWARE.insert(0, "gpunex.kit.requests.ClientAddressMiddleware")
DATA_UPLOAD_MAX_MEMORY_SIZE = 30 * 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FIELDS = 10_000

# --- APIs ---
REST_FRAMEWORK = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_THROTTLE_RATES": {"api": "240/min"},
    "COERCE_DECIMAL_TO_STRING": True,
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {"TITLE": "GPUnex agent API", "VERSION": "1", "OAS_VERSION": "3.1.0"}

# --- Logs ---
LOGGING_CONFIG = "gpunex.kit.logs.configure"
LOGGING = {"json": not EMBEDDED or _flag("LOG_JSON"), "level": _env("LOG_LEVEL", "INFO")}

# --- Admin ---
UNFOLD = {
    "SITE_TITLE": "GPUnex",
    "SITE_HEADER": "GPUnex",
    "SITE_SYMBOL": "speed",
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda _request: static("brand/favicon.svg")}],
    "SHOW_HISTORY": True,
    "SHOW_LANGUAGES": False,
    "ENVIRONMENT": "gpunex.shell.environment",
    "SITE_SUBHEADER": _("Administration"),
    # The accent of static/css/tokens.css, hue 205, in the steps that the theme wants.
    "COLORS": {
        "primary": {
            "50": "oklch(97.5% .012 202)",
            "100": "oklch(94% .025 202)",
            "200": "oklch(88% .045 202)",
            "300": "oklch(81% .065 202)",
            "400": "oklch(73% .085 203)",
            "500": "oklch(60% .09 204)",
            "600": "oklch(45% .076 205)",
            "700": "oklch(39% .066 206)",
            "800": "oklch(34% .057 207)",
            "900": "oklch(28.5% .045 208)",
            "950": "oklch(22% .03 208)",
        },
    },
}
