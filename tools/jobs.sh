#!/bin/sh
# Prints how many compilers may run at once: one per core, but no more than memory holds
# (a translation unit with libtorch needs about 1.5 GB).
cores=$(nproc 2>/dev/null || echo 1)
kb=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)
limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null)
case $limit in
  '' | max) ;;
  *) [ $((limit / 1024)) -lt "${kb:-0}" ] && kb=$((limit / 1024)) ;;
esac
jobs=$((${kb:-0} / 1500000))
[ "$jobs" -gt "$cores" ] && jobs=$cores
[ "$jobs" -lt 1 ] && jobs=1
echo "$jobs"
