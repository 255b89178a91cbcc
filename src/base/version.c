/* SPDX-License-Identifier: MIT */
/*
 * What this library is, as text in the file, for `vmmlane doctor` (and what(1),
 * strings(1)): processes whose texts differ do not understand each other.
 */
#include "lane/handle.h"
#include "ledger/layout.h"
#include "transport/wire.h"

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

extern const char vmml_version_text[];

__attribute__((used)) const char vmml_version_text[] =
    "@(#)vmmlane " VMML_RELEASE
    " (handle " TEXT(VMML_HANDLE_VERSION) ", ledger " TEXT(
        VMML_LEDGER_VERSION) ", socket " TEXT(VMML_WIRE_VERSION) ")";
