#!/usr/bin/env bash
# Connects this machine's NVIDIA GPUs to GPUnex:  curl -fsSL @@GPUNEX_URL@@/agent | bash
# Everything is inside main, which is called on the last line: half a download runs nothing.
# The key is asked for on the terminal, or taken from GPUNEX_API_KEY or --key-file; it is never put on a command line.

main() {
  set -euo pipefail
  umask 077
  PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
  export LC_ALL=C

  URL="${GPUNEX_URL:-@@GPUNEX_URL@@}"
  URL="${URL%/}"
  IMAGE="${GPUNEX_AGENT_IMAGE:-@@GPUNEX_AGENT_IMAGE@@}"
  KEY_FILE="${GPUNEX_KEY_FILE:-}"
  GPUS="${GPUNEX_GPUS:-}"
  NAME="${GPUNEX_HOSTNAME:-$(uname -n)}"
  ACTION=install
  DRY_RUN=0
  PURGE=0
  NAME_OF_CONTAINER=gpunex-agent
  CONFIG=/etc/gpunex
  STATE=/var/lib/gpunex
  LIBRARY=/usr/local/lib/gpunex
  UNITS=/etc/systemd/system
  AGENT_UID=10001
  MIN_DOCKER=25
  MIN_TOOLKIT=1.17.8

  parse_arguments "$@"
  if [ "$ACTION" = uninstall ]; then
    check_machine
    find_docker
    uninstall
    return 0
  fi
  check_machine
  check_docker
  check_driver
  check_toolkit
  check_services
  check_disk
  check_platform
  get_key
  choose_gpus
  pull_image
  write_configuration
  check_gpu_in_container
  enrol
  start_agent
  wait_for_heartbeat
}

usage() {
  cat <<TEXT
Connects this machine's NVIDIA GPUs to GPUnex.

  curl -fsSL $URL/agent | bash
  curl -fsSL $URL/agent | bash -s -- [options]

  --key-file FILE   read the enrolment token or provider key from FILE (else: GPUNEX_API_KEY, else asked for)
  --gpus LIST       all, or the UUIDs to give, separated by commas (GPUNEX_GPUS)
  --name NAME       this machine's name on the dashboard
  --dry-run         check everything, change nothing, say what would be done
  --uninstall       stop the agent and its jobs, and take the machine off the platform
  --purge           with --uninstall: also remove the agent's image
TEXT
}

parse_arguments() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --key-file) need_value "$@"; KEY_FILE="$2"; shift ;;
      --gpus) need_value "$@"; GPUS="$2"; shift ;;
      --name) need_value "$@"; NAME="$2"; shift ;;
      --dry-run) DRY_RUN=1 ;;
      --uninstall) ACTION=uninstall ;;
      --purge) PURGE=1 ;;
      -y | --yes) GPUS="${GPUS:-all}" ;;
      -h | --help) usage; exit 0 ;;
      *) usage >&2; fail 2 "Unknown option: $1" "See the options above." ;;
    esac
    shift
  done
}

need_value() {
  [ $# -ge 2 ] || fail 2 "$1 needs a value." "For example: $1 ${1#--}"
}

say() { printf '%s\n' "$*"; }

ok() { printf '  ok    %s\n' "$*"; }

# fail CODE WHAT REMEDY: one exit status for each thing that can be wrong.
fail() {
  printf '\nNot installed (code %s): %s\n' "$1" "$2" >&2
  printf 'What to do: %s\n' "$3" >&2
  exit "$1"
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# change COMMAND...: something that changes the machine; only told in a dry run.
change() {
  if [ "$DRY_RUN" -eq 1 ]; then say "  would run: $*"; else as_root "$@"; fi
}

# put FILE MODE OWNER: write stdin to a file. The draft is private (umask 077) for as long as it exists.
put() {
  if [ "$DRY_RUN" -eq 1 ]; then
    cat >/dev/null
    say "  would write: $1 (mode $2)"
    return 0
  fi
  local draft
  draft="$(mktemp)"
  cat >"$draft"
  as_root install -D -m "$2" -o "$3" "$draft" "$1" || { rm -f "$draft"; fail 35 "$1 cannot be written." "Is the disk full or read-only?"; }
  rm -f "$draft"
}

# at_least HAVE WANT: version comparison.
at_least() {
  [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

check_machine() {
  say "GPUnex agent for $URL"
  [ "$(uname -s)" = Linux ] || fail 20 "This is $(uname -s), not Linux." "Run this on the Linux machine that holds the GPUs."
  case "$(uname -m)" in
    x86_64 | aarch64) ;;
    *) fail 21 "The processor is $(uname -m)." "GPUnex runs on x86_64 and aarch64." ;;
  esac
  case "$(uname -r)" in
    *-Microsoft) fail 22 "This is WSL 1, which cannot use a GPU." "Use Linux itself, or at least WSL 2." ;;
  esac
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || fail 23 "This needs root, and there is no sudo." "Run it as root."
    [ "$DRY_RUN" -eq 1 ] || sudo -v || fail 23 "sudo refused." "Run it as root, or as a user who may use sudo."
  fi
  ok "$(uname -s) $(uname -r) on $(uname -m)"
}

find_docker() {
  command -v docker >/dev/null 2>&1 ||
    fail 24 "Docker is not installed." "Install Docker Engine $MIN_DOCKER or newer: https://docs.docker.com/engine/install/"
}

docker_() { as_root docker "$@"; }

check_docker() {
  find_docker
  local real version options context
  real="$(readlink -f "$(command -v docker)")"
  case "$real" in
    */snap/*) fail 26 "Docker comes from snap, which cannot pass GPUs on." "Remove it (snap remove docker), then install Docker Engine: https://docs.docker.com/engine/install/" ;;
    *podman*) fail 28 "The docker command here is podman." "Install Docker Engine: https://docs.docker.com/engine/install/" ;;
  esac
  if docker --version 2>/dev/null | grep -qi podman; then
    fail 28 "The docker command here is podman." "Install Docker Engine: https://docs.docker.com/engine/install/"
  fi
  version="$(docker_ version --format '{{.Server.Version}}' 2>/dev/null)" ||
    fail 25 "The Docker daemon does not answer." "Start it (systemctl enable --now docker), then look at: journalctl -u docker"
  options="$(docker_ info --format '{{json .SecurityOptions}}' 2>/dev/null || true)"
  case "$options" in
    *name=rootless*) fail 27 "Docker runs rootless here, which cannot wall jobs in." "Install Docker Engine for the system, not for one user." ;;
  esac
  context="$(docker_ info --format '{{.OperatingSystem}}' 2>/dev/null || true)"
  case "$context" in
    *"Docker Desktop"*) fail 29 "This is Docker Desktop." "Install Docker Engine on Linux itself." ;;
  esac
  at_least "$version" "$MIN_DOCKER" ||
    fail 40 "Docker $version is too old." "Update Docker Engine to $MIN_DOCKER or newer."
  ok "Docker $version"
}

check_driver() {
  local answer
  command -v nvidia-smi >/dev/null 2>&1 ||
    fail 30 "There is no NVIDIA driver (nvidia-smi is missing)." "Install the NVIDIA driver for CUDA 12.4 or newer, then reboot."
  if ! answer="$(nvidia-smi --query-gpu=uuid,name --format=csv,noheader 2>&1)"; then
    case "$answer" in
      *"version mismatch"*) fail 31 "The NVIDIA driver was updated and the old one is still loaded." "Reboot this machine." ;;
      *) fail 30 "nvidia-smi fails: $answer" "Repair the NVIDIA driver until nvidia-smi lists the GPUs." ;;
    esac
  fi
  GPU_LIST="$answer"
  ok "$(printf '%s\n' "$GPU_LIST" | grep -c 'GPU-') GPU(s), driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)"
}

toolkit_version() {
  local tool
  for tool in nvidia-container-toolkit nvidia-ctk nvidia-container-cli; do
    if command -v "$tool" >/dev/null 2>&1; then
      "$tool" --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1
      return 0
    fi
  done
  return 1
}

check_toolkit() {
  local version
  version="$(toolkit_version)" ||
    fail 32 "The NVIDIA Container Toolkit is not installed." "Install it ($MIN_TOOLKIT or newer), then: systemctl restart docker. https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/"
  at_least "${version:-0}" "$MIN_TOOLKIT" ||
    fail 32 "The NVIDIA Container Toolkit is $version: too old, and unsafe." "Update it to $MIN_TOOLKIT or newer, then: systemctl restart docker"
  ok "NVIDIA Container Toolkit $version"
}

check_services() {
  { command -v systemctl >/dev/null 2>&1 && [ -d "${GPUNEX_SYSTEMD_RUN:-/run/systemd/system}" ]; } ||
    fail 34 "There is no systemd, so nothing would start the agent after a reboot." "Use a distribution with systemd."
  command -v nft >/dev/null 2>&1 ||
    fail 41 "nftables is missing; it keeps jobs away from your network." "Install it: apt install nftables (or dnf install nftables)."
  ok "systemd and nftables"
}

check_disk() {
  local free
  free="$(df -Pk /var/lib 2>/dev/null | awk 'NR==2 {print int($4/1048576)}')"
  [ "${free:-0}" -ge 10 ] || fail 35 "Only ${free:-0} GiB are free under /var/lib." "Free at least 10 GiB there; offers need 128 GB."
  if [ "$DRY_RUN" -eq 0 ]; then
    as_root mkdir -p "$STATE" 2>/dev/null || fail 35 "$STATE cannot be made." "Is the disk mounted read-only?"
  fi
  ok "$free GiB free"
}

# fetch_head: the platform's answer headers.
fetch_head() {
  if command -v curl >/dev/null 2>&1; then
    curl -fsSI --max-time 15 "$URL/agent"
  else
    wget -q --server-response --spider --timeout=15 "$URL/agent" 2>&1
  fi
}

check_platform() {
  local headers status=0 there here off
  case "$URL" in
    https://* | http://localhost* | http://127.0.0.1*) ;;
    *) fail 36 "$URL is not https." "Use the address from your dashboard." ;;
  esac
  { command -v curl >/dev/null 2>&1 || command -v wget >/dev/null 2>&1; } || fail 36 "Neither curl nor wget is here." "Install curl."
  headers="$(fetch_head)" || status=$?
  case "$status" in
    0) ;;
    35 | 51 | 58 | 60 | 77 | 83 | 91) fail 37 "The platform's certificate is not trusted here." "A proxy may open TLS, or the clock may be wrong: check both." ;;
    *) fail 36 "$URL cannot be reached." "Outgoing HTTPS (port 443) must be open; check proxy and DNS." ;;
  esac
  there="$(printf '%s\n' "$headers" | tr -d '\r' | sed -n 's/^ *[Dd]ate: *//p' | tail -n 1)"
  if [ -n "$there" ] && there="$(date -d "$there" +%s 2>/dev/null)"; then
    here="$(date +%s)"
    off=$((here - there))
    [ "${off#-}" -le 60 ] || fail 38 "This machine's clock is off by $off seconds." "Set it: timedatectl set-ntp true"
  fi
  ok "the platform answers"
}

# A terminal is there if it can be opened; being readable is not enough.
have_terminal() { (exec </dev/tty) 2>/dev/null; }

get_key() {
  KEY=""
  if [ -n "$KEY_FILE" ]; then
    [ -r "$KEY_FILE" ] || fail 39 "$KEY_FILE cannot be read." "Name the file that holds the key."
    KEY="$(tr -d '[:space:]' <"$KEY_FILE")"
  elif [ -n "${GPUNEX_API_KEY:-}" ]; then
    KEY="$GPUNEX_API_KEY"
  elif as_root test -s "$STATE/identity.json" 2>/dev/null; then
    ok "this machine is connected already; its identity is kept"
    return 0
  elif have_terminal; then
    printf 'Enrolment token or provider key (it is not shown): ' >/dev/tty
    IFS= read -rs KEY </dev/tty || true
    printf '\n' >/dev/tty
  else
    fail 39 "There is no terminal to ask for the key." "Run: curl -fsSL $URL/agent | GPUNEX_API_KEY=… bash   or: … | bash -s -- --key-file FILE"
  fi
  case "$KEY" in
    gpxe_?* | gpxk_?*) ok "key read" ;;
    "") fail 39 "No key was given." "Copy the key from the mail or from the dashboard." ;;
    *) fail 39 "That is not a GPUnex key." "A key begins with gpxe_ or gpxk_; copy it whole." ;;
  esac
}

choose_gpus() {
  if [ -z "$GPUS" ] && have_terminal && [ "$(printf '%s\n' "$GPU_LIST" | grep -c 'GPU-')" -gt 1 ]; then
    printf '%s\n' "$GPU_LIST" >/dev/tty
    printf 'GPUs to give (Enter for all, or their UUIDs separated by commas): ' >/dev/tty
    IFS= read -r GPUS </dev/tty || true
  fi
  GPUS="$(printf '%s' "${GPUS:-all}" | tr -d '[:space:]')"
  [ "$GPUS" = all ] && return 0
  local uuid
  for uuid in $(printf '%s' "$GPUS" | tr ',' ' '); do
    case "$GPU_LIST" in
      *"$uuid"*) ;;
      *) fail 43 "This machine has no GPU $uuid." "Choose from: $(printf '%s' "$GPU_LIST" | tr '\n' ';')" ;;
    esac
  done
}

pull_image() {
  say "Getting the agent ($IMAGE)"
  if [ "$DRY_RUN" -eq 0 ] && docker_ image inspect "$IMAGE" >/dev/null 2>&1 && [ "${GPUNEX_NO_PULL:-0}" = 1 ]; then
    return 0
  fi
  change docker pull -q "$IMAGE" || fail 44 "The agent's image cannot be pulled." "Is the registry reachable from here? Try: docker pull $IMAGE"
}

write_configuration() {
  say "Writing the configuration"
  change mkdir -p "$CONFIG" "$STATE/host"
  change chmod 755 "$CONFIG"
  change chown "$AGENT_UID" "$STATE"
  if [ -n "$KEY" ]; then
    printf '%s\n' "$KEY" | put "$CONFIG/key" 400 "$AGENT_UID"
  elif [ "$DRY_RUN" -eq 0 ] && ! as_root test -e "$CONFIG/key"; then
    : | put "$CONFIG/key" 400 "$AGENT_UID"
  fi
  put "$CONFIG/agent.env" 600 root <<TEXT
GPUNEX_URL=$URL
GPUNEX_STATE=$STATE
GPUNEX_KEY_FILE=/run/gpunex/key
GPUNEX_GPUS=$GPUS
GPUNEX_HOSTNAME=$NAME
GPUNEX_AGENT_IMAGE=$IMAGE
TEXT
  write_egress
  put "$LIBRARY/run-agent" 755 root <<TEXT
#!/bin/sh
# Starts the agent's container in the foreground; systemd owns it. Arguments go to the agent.
set -eu
name="\$1"
shift
gid="\$(stat -c %g /var/run/docker.sock)"
docker rm -f "\$name" >/dev/null 2>&1 || true
exec docker run --rm --name "\$name" --label com.gpunex.agent=1 \\
  --gpus '"all","capabilities=utility"' --user "$AGENT_UID:\$gid" --read-only --tmpfs /tmp:size=64m,mode=1777 \\
  --cap-drop ALL --security-opt no-new-privileges --memory 512m --pids-limit 256 \\
  --log-driver local --log-opt max-size=10m --log-opt max-file=3 --env-file $CONFIG/agent.env \\
  --mount type=bind,src=/var/run/docker.sock,dst=/var/run/docker.sock \\
  --mount type=bind,src=$STATE,dst=$STATE --mount type=bind,src=$CONFIG/key,dst=/run/gpunex/key,readonly \\
  --mount type=bind,src=/etc/machine-id,dst=/etc/gpunex/machine-id,readonly \\
  $IMAGE python -m agent "\$@"
TEXT
  put "$UNITS/gpunex-agent.service" 644 root <<TEXT
[Unit]
Description=GPUnex agent
After=docker.service network-online.target gpunex-egress.service
Wants=network-online.target gpunex-egress.service
Requires=docker.service

[Service]
ExecStart=$LIBRARY/run-agent $NAME_OF_CONTAINER
ExecStop=/usr/bin/env docker stop -t 10 $NAME_OF_CONTAINER
Restart=always
RestartSec=10
# Refusals of the key: trying again would not help.
RestartPreventExitStatus=3 10 11 12 13 14 15 16 17

[Install]
WantedBy=multi-user.target
TEXT
}

# The wall between jobs and this network: a table of its own, set up by root, looked after each minute.
write_egress() {
  put "$CONFIG/egress.nft" 644 root <<'TEXT'
table inet gpunex
delete table inet gpunex
table inet gpunex {
  set lan {
    type ipv4_addr; flags interval
    elements = { 0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16, 224.0.0.0/4 }
  }
  chain jobs_forward {
    type filter hook forward priority -10; policy accept;
    iifname "gpx*" ip daddr @lan drop
    iifname "gpx*" meta nfproto ipv6 drop
    iifname "gpx*" tcp dport { 25, 465, 587 } drop
  }
  chain jobs_input {
    type filter hook input priority -10; policy accept;
    iifname "gpx*" drop
  }
}
TEXT
  put "$LIBRARY/egress" 755 root <<TEXT
#!/bin/sh
# Puts the egress table back if it is gone, and leaves the note that the agent reads. Run by root each minute.
PATH="\$PATH:/usr/local/sbin:/usr/sbin:/sbin"
egress=present
if ! nft list chain inet gpunex jobs_forward >/dev/null 2>&1 || ! nft list chain inet gpunex jobs_input >/dev/null 2>&1; then
  nft -f $CONFIG/egress.nft || egress=missing
fi
toolkit="\$( (nvidia-container-toolkit --version || nvidia-ctk --version) 2>/dev/null | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)"
mkdir -p $STATE/host
printf '{"checked_at": "%s", "boot_id": "%s", "egress": "%s", "toolkit_version": "%s"}\n' \\
  "\$(date -u +%Y-%m-%dT%H:%M:%SZ)" "\$(cat /proc/sys/kernel/random/boot_id)" "\$egress" "\$toolkit" >$STATE/host/check.json.new
chmod 644 $STATE/host/check.json.new
mv $STATE/host/check.json.new $STATE/host/check.json
chmod 755 $STATE/host
TEXT
  put "$UNITS/gpunex-egress.service" 644 root <<TEXT
[Unit]
Description=GPUnex: keeps jobs away from this network
Before=gpunex-agent.service

[Service]
Type=oneshot
ExecStart=$LIBRARY/egress
TEXT
  put "$UNITS/gpunex-egress.timer" 644 root <<TEXT
[Unit]
Description=GPUnex: looks after the egress table

[Timer]
OnBootSec=5s
OnUnitActiveSec=60s

[Install]
WantedBy=timers.target
TEXT
}

check_gpu_in_container() {
  if [ "$DRY_RUN" -eq 1 ]; then
    say "  would try: a container that sees the GPUs"
    return 0
  fi
  local answer
  answer="$(docker_ run --rm --gpus all --network none --entrypoint nvidia-smi "$IMAGE" -L 2>&1)" ||
    fail 33 "A container cannot use the GPUs: $answer" "Run: nvidia-ctk runtime configure --runtime=docker && systemctl restart docker"
  ok "containers can use the GPUs"
}

enrol() {
  if [ "$DRY_RUN" -eq 1 ]; then
    say "  would connect this machine to $URL"
    return 0
  fi
  local status=0
  change systemctl daemon-reload
  change systemctl enable --now gpunex-egress.timer >/dev/null
  change systemctl start gpunex-egress.service
  as_root systemctl stop gpunex-agent.service >/dev/null 2>&1 || true
  as_root "$LIBRARY/run-agent" gpunex-enrol --enrol-only || status=$?
  [ "$status" -eq 0 ] || fail "$status" "The platform did not take this machine; the reason is above." "Correct that, then run this again."
}

start_agent() {
  change systemctl daemon-reload
  change systemctl enable gpunex-agent.service
  change systemctl restart gpunex-agent.service
}

wait_for_heartbeat() {
  if [ "$DRY_RUN" -eq 1 ]; then
    say "Everything needed is here. Nothing was changed (dry run)."
    return 0
  fi
  local tries=0
  while [ "$tries" -lt 60 ]; do
    if docker_ exec "$NAME_OF_CONTAINER" python -m agent --status 2>/dev/null; then
      say ""
      say "Connected. The dashboard shows this machine now: $URL"
      say "Log: journalctl -u gpunex-agent    Remove: curl -fsSL $URL/agent | bash -s -- --uninstall"
      return 0
    fi
    tries=$((tries + 1))
    sleep 2
  done
  fail 42 "The agent runs but the platform has not accepted a heartbeat." "Look at: journalctl -u gpunex-agent"
}

uninstall() {
  say "Removing the agent; jobs on this machine end now"
  if command -v systemctl >/dev/null 2>&1; then
    as_change_quietly systemctl disable --now gpunex-agent.service
  fi
  if [ "$DRY_RUN" -eq 1 ]; then
    say "  would retire this machine on $URL"
  elif [ -x "$LIBRARY/run-agent" ]; then
    as_root "$LIBRARY/run-agent" gpunex-uninstall --uninstall || say "The platform could not be told; it will see the machine as lost."
  fi
  if command -v systemctl >/dev/null 2>&1; then
    as_change_quietly systemctl disable --now gpunex-egress.timer
  fi
  as_change_quietly nft delete table inet gpunex
  change rm -rf "$UNITS/gpunex-agent.service" "$UNITS/gpunex-egress.service" "$UNITS/gpunex-egress.timer" "$LIBRARY" "$CONFIG" "$STATE"
  if command -v systemctl >/dev/null 2>&1; then
    as_change_quietly systemctl daemon-reload
  fi
  [ "$PURGE" -eq 0 ] || as_change_quietly docker image rm "$IMAGE"
  say "Removed."
}

as_change_quietly() {
  if [ "$DRY_RUN" -eq 1 ]; then say "  would run: $*"; else as_root "$@" >/dev/null 2>&1 || true; fi
}

main "$@"
