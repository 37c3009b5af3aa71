#!/usr/bin/env bash
# The central without systemd: bash launch/central/central.sh start [WORD...] | stop | status
# WORDs are those of `python -m pww.central`. Its pid and its log are in outputs/service.
# Exit codes: 0 done, or it runs; 1 a fault; 3 (status) it does not run.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=outputs/service
pidfile=$folder/central.pid
log=$folder/central.log
say() { echo "central: $*"; }
# The pid of the central that we started, if it lives: a number that another program got since is not it
alive() {
  [ -s "$pidfile" ] && pid=$(cat "$pidfile") && [ -r "/proc/$pid/cmdline" ] \
    && [[ "$(tr '\0' ' ' <"/proc/$pid/cmdline")" == *" -m pww.central "* ]]
}

case "${1:-}" in
  start)
    shift
    if alive; then say "runs already, pid $pid; stop it first"; exit 1; fi
    mkdir -p "$folder"
    touch "$log"
    before=$(stat -c %s "$log")
    setsid nohup "${PYTHON:-python}" -m pww.central "$@" >>"$log" 2>&1 </dev/null &
    echo $! >"$pidfile"
    # A wrong configuration or a taken port ends it early: say so here, not in a log that nobody reads. It is watched until
    # its first words and a second more
    said=0
    for _ in $(seq 300); do
      sleep 0.1
      if ! kill -0 "$(cat "$pidfile")" 2>/dev/null; then
        rm -f "$pidfile"; tail -n 5 "$log" >&2; say "did not start; its last lines are above, its log is $log"; exit 1
      fi
      [ "$(stat -c %s "$log")" -gt "$before" ] && said=$((said + 1))
      [ "$said" -ge 10 ] && break
    done
    say "started, pid $(cat "$pidfile"), log $log"
    ;;
  stop)
    if ! alive; then rm -f "$pidfile"; say "does not run"; exit 0; fi
    kill -TERM "$pid"
    for _ in $(seq 300); do
      if ! kill -0 "$pid" 2>/dev/null; then rm -f "$pidfile"; say "stopped"; exit 0; fi
      sleep 0.1
    done
    say "pid $pid still runs 30 s after it was asked to stop; kill -9 $pid loses nothing that was acknowledged"; exit 1
    ;;
  status)
    if alive; then say "runs, pid $pid, log $log"; else say "does not run"; exit 3; fi
    ;;
  *) say "start [WORD...] | stop | status" >&2; exit 1 ;;
esac
