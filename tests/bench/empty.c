/* SPDX-License-Identifier: MIT */
/* A library without anything, preloaded: what a preload costs at the least. */
extern const int bench_empty;
__attribute__((visibility("default"))) const int bench_empty = 0;
