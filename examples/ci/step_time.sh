#!/usr/bin/env bash
# Fail where a training step of this checkout is slower than that of another commit, beyond noise.
#
#   bash step_time.sh COMMIT python train.py --any --args
#
# Both run in turns, three pairs; the pull request fails where every pair shows it. Ends with 0 where
# no step got slower, 1 where one did, 2 where the two did not do the same work.
set -euo pipefail
commit=$1
shift
records=$(mktemp -d)
git worktree add --quiet --detach "$records/base" "$commit"
trap 'git worktree remove --force "$records/base"' EXIT

measure() {  # FOLDER RECORD CMD...
  local folder=$1 record=$2
  shift 2
  # 3: the doctor ended the command after its steps.
  (cd "$folder" && pitstop doctor --steps "${STEPS:-100}" --record "$record" -- "$@") || [ $? -eq 3 ]
}

slower=0
for pair in 1 2 3; do
  order=("$records/base" "$PWD")
  if [ $pair -eq 2 ]; then order=("$PWD" "$records/base"); fi
  for folder in "${order[@]}"; do
    side=head
    if [ "$folder" != "$PWD" ]; then side=base; fi
    measure "$folder" "$records/$side-$pair" "$@"
  done
  code=0
  pitstop doctor "$records/base-$pair" "$records/head-$pair" || code=$?
  case $code in
    0) ;;
    1) slower=$((slower + 1)) ;;
    *) exit "$code" ;;
  esac
done
echo "slower in $slower of 3 pairs"
[ $slower -lt 3 ]
