#!/bin/sh
if [ "$(cat /app/largest.txt 2>/dev/null)" = 21 ]; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi
