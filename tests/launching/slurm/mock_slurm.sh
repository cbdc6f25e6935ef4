#!/usr/bin/env bash
# A Slurm of files, in the folder $MOCK_SLURM: this script under the names of sbatch, srun, squeue, sacct, scontrol and
# scancel. table: one line per job, id|state|reason|node|raw id|start|script|name; squeue tells all of it.
# <command>.knob: how the command misbehaves.
set -u
me=$(basename "$0") home=$MOCK_SLURM table=$MOCK_SLURM/table
{ printf '%s' "$me"; printf ' %s' "$@"; echo; } >> "$home/calls"

if [ -f "$home/$me.knob" ]; then  # KIND TIMES MESSAGE; TIMES below zero: for ever
  read -r kind times message < "$home/$me.knob"
  if [ "$times" -ne 0 ]; then
    echo "$kind $((times - 1)) $message" > "$home/$me.knob"
    case $kind in
      fail) echo "$message" >&2; exit 1 ;;
      silent) exit 0 ;;
      hang) exec sleep 60 ;;
      hang_next) echo "hang -1 -" > "$home/$me.knob" ;;
      hang_after) hangs_after=yes ;;
    esac
  fi
fi

option() {  # option NAME ARGS...: the value of --NAME=VALUE
  local name=$1 given; shift
  for given in "$@"; do case $given in --"$name"=*) echo "${given#*=}"; return ;; esac; done
}

set_state() {  # set_state ID STATE
  ( flock 9; awk -F'|' -v OFS='|' -v id="$1" -v state="$2" '$1 == id { $2 = state } 1' "$table" > "$table.new" &&
    mv "$table.new" "$table" ) 9> "$home/lock"
}

listed() {  # the lines of the jobs named by --jobs, an element of an array by its own number, too; or by --name
  local ids names line id raw; ids=$(option jobs "$@") names=$(option name "$@")
  while IFS= read -r line; do
    id=${line%%|*} raw=$(echo "$line" | cut -d'|' -f5)
    if [ -n "$names" ]; then
      case ",$names," in *",${line##*|},"*) echo "${line%|*}" ;; esac
      continue
    fi
    if [ -z "$ids" ]; then echo "$line"; continue; fi
    case ",$ids," in *",$id,"* | *",${id%%_*},"* | *",$raw,"*) echo "$line" ;; esac
  done < "$table"
}

run_job() {  # run_job SCRIPT MAIN [ELEMENT]: as slurmd would
  local script=$1 main=$2 element=${3:-} id=$2
  export SLURM_JOB_ID=$main SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1 SLURM_JOB_NODELIST=n1
  if [ -n "$element" ]; then
    id=${main}_$element
    export SLURM_ARRAY_JOB_ID=$main SLURM_ARRAY_TASK_ID=$element SLURM_JOB_ID=$((main * 1000 + element))
  fi
  set_state "$id" RUNNING
  bash "$script" > "$home/jobs/$id.out" 2>&1 && set_state "$id" COMPLETED || set_state "$id" FAILED
}

case $me in
sbatch)
  script=${*: -1}
  main=$(( $(cat "$home/next" 2>/dev/null || echo 11) + 1 )); echo "$main" > "$home/next"
  mkdir -p "$home/jobs"
  cp "$script" "$home/jobs/$main.sh"; env -0 > "$home/jobs/$main.env"
  about="$script|$(sed -n 's/^#SBATCH --job-name=//p' "$script")"
  elements=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\)%.*/\1/p' "$script")
  ( flock 9
    if [ -n "$elements" ]; then
      for element in $(seq 0 "$elements"); do
        echo "${main}_$element|PENDING|Priority||$((main * 1000 + element))|N/A|$about"
      done >> "$table"
    else
      echo "$main|PENDING|Priority||$main|N/A|$about" >> "$table"
    fi ) 9> "$home/lock"
  if [ -f "$home/run" ]; then
    ( sleep "$(cat "$home/run")"
      for element in $( [ -n "$elements" ] && seq 0 "$elements" || echo none ); do
        ( run_job "$home/jobs/$main.sh" "$main" "${element#none}" )
      done ) > "$home/jobs/$main.log" 2>&1 < /dev/null &
  fi
  if [ -n "${hangs_after:-}" ]; then exec sleep 60; fi
  echo "Submitted batch job $main" ;;
srun)
  out=/dev/stdout err=/dev/stderr
  while [ $# -gt 0 ]; do
    case $1 in
      --output) out=$2; shift 2 ;;
      --error) err=$2; shift 2 ;;
      -*) shift ;;
      *) break ;;
    esac
  done
  for name in out err; do
    path=${!name}
    path=${path//%j/${SLURM_JOB_ID}} path=${path//%A/${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}
    path=${path//%a/${SLURM_ARRAY_TASK_ID:-}} path=${path//%t/0}
    printf -v "$name" '%s' "$path"
  done
  export SLURM_PROCID=0 SLURM_NODEID=0 SLURM_LOCALID=0
  if [ -f "$home/srun_clears" ]; then exec env -i PATH="$PATH" "$@" >> "$out" 2>> "$err"; fi
  exec "$@" >> "$out" 2>> "$err" ;;
squeue)
  lines=$(listed "$@")
  if [ -z "$lines" ] && [ -n "$(option jobs "$@")" ]; then
    echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1
  fi
  if [ -n "$lines" ]; then echo "$lines"; fi ;;
sacct)
  if [ ! -f "$home/accounts" ]; then echo "Slurm accounting storage is disabled" >&2; exit 1; fi
  cat "$home/accounts" ;;
scontrol)
  case "$1 ${2:-}" in
    "show config") echo "MaxArraySize            = $(cat "$home/max_array" 2>/dev/null || echo 1001)" ;;
    "show job") cat "$home/shown" 2>/dev/null || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; } ;;
    requeue*) set_state "$2" PENDING ;;
  esac ;;
scancel)
  for id in "$@"; do set_state "$id" CANCELLED; done ;;
esac
