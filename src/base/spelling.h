/* SPDX-License-Identifier: MIT */
/* Variables of the environment that were meant as settings and are none. */
#ifndef VMML_BASE_SPELLING_H
#define VMML_BASE_SPELLING_H

#include <stdbool.h>

/* Longer names are cut. */
#define VMML_SETTING_NAME_MAX 64

/* entry: "NAME=value" of an environment, here and below. True: NAME is a
 * setting. */
bool vmml_is_setting(const char *entry);

/* True: NAME begins with VMMLANE_, has
 * a value, and is neither a setting nor something else that may be called so.
 * *meant: the setting whose name is nearest, or NULL where none is near. */
bool vmml_misspelt(const char *entry, char name[VMML_SETTING_NAME_MAX],
                   const char **meant);

#endif
