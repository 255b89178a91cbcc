/* SPDX-License-Identifier: MIT */
#include "command/completion.h"

#include <stdbool.h>
#include <string.h>

#include "command/command.h"

/* What the argument of an option is, by its name in --help. */
static const struct vmml_argument {
    const char *name;
    const char *words; /* NULL: as the shell completes files */
} vmml_argument_kinds[] = {
    {"FILE", NULL},
    {"FOLDER", NULL},
    {"FORMAT", "text json"},
    {"LEVEL", "off error warn info debug trace"},
    {"SHELL", "bash zsh fish"},
    {"WHEN", "auto never"},
};

/* NULL: nothing is known of it. */
static const struct vmml_argument *vmml_argument(const struct argp_option *o)
{
    size_t count = sizeof(vmml_argument_kinds) / sizeof(*vmml_argument_kinds);

    for (size_t i = 0; o->arg != NULL && i < count; i++) {
        if (strcmp(vmml_argument_kinds[i].name, o->arg) == 0)
            return &vmml_argument_kinds[i];
    }
    return NULL;
}

static const struct argp_option vmml_help_option = {
    .name = "help", .doc = "Print what there is"};

/* The next option with a name after `o`, then --help, then NULL; `o` is NULL
 * for the first. */
static const struct argp_option *vmml_next(const struct argp_option *options,
                                           const struct argp_option *o)
{
    if (o == &vmml_help_option)
        return NULL;
    for (o = o == NULL ? options : o + 1;
         o->name != NULL || o->key != 0 || o->doc != NULL; o++) {
        if (o->name != NULL && (o->flags & OPTION_HIDDEN) == 0)
            return o;
    }
    return &vmml_help_option;
}

#define VMML_EACH_OPTION(o, options)                                           \
    const struct argp_option *o = vmml_next(options, NULL);                    \
    o != NULL;                                                                 \
    o = vmml_next(options, o)

#define VMML_EACH_COMMAND(c)                                                   \
    const struct vmml_command *c = vmml_commands;                              \
    c->name != NULL;                                                           \
    c++

static bool vmml_takes_next_word(const struct argp_option *o)
{
    return o->arg != NULL && (o->flags & OPTION_ARG_OPTIONAL) == 0;
}

/* Inside single quotes of the shell; `escaped` gets a backslash before it. */
static void vmml_quoted(FILE *out, const char *text, const char *escaped)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else if (strchr(escaped, *text) != NULL)
            fprintf(out, "\\%c", *text);
        else
            fputc(*text, out);
    }
}

/* --- bash ---------------------------------------------------------------- */

static void vmml_bash_options(FILE *out, const struct argp_option *options)
{
    for (VMML_EACH_OPTION(o, options))
        fprintf(out, "--%s%s", o->name, o == &vmml_help_option ? "" : " ");
}

static void vmml_bash_values(FILE *out, const struct argp_option *options)
{
    for (VMML_EACH_OPTION(o, options)) {
        const struct vmml_argument *argument = vmml_argument(o);

        if (argument != NULL && argument->words != NULL)
            fprintf(out, "    --%s) words='%s' ;;\n", o->name, argument->words);
        else if (argument != NULL)
            fprintf(out, "    --%s) files=1 ;;\n", o->name);
    }
}

static void vmml_bash_skipped(FILE *out, const struct argp_option *options)
{
    for (VMML_EACH_OPTION(o, options)) {
        if (vmml_takes_next_word(o))
            fprintf(out, "--%s ", o->name);
    }
}

static void vmml_bash(FILE *out, const struct argp_option *options)
{
    fputs("# bash completion of vmmlane\n"
          "_vmmlane() {\n"
          "    local current=${COMP_WORDS[COMP_CWORD]} words='' files=''\n"
          "    local previous=${COMP_WORDS[COMP_CWORD - 1]} sub='' i\n"
          "    local valued=' ",
          out);
    for (VMML_EACH_COMMAND(c))
        vmml_bash_skipped(out, c->argp->options);
    fputs("'\n"
          "    COMPREPLY=()\n"
          "    [ \"$current\" = = ] && current=''\n"
          "    [ \"$previous\" = = ] && "
          "previous=${COMP_WORDS[COMP_CWORD - 2]}\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        case ${COMP_WORDS[i]} in\n"
          "        --) [ -n \"$sub\" ] && i=$((i + 1)) && break ;;\n"
          "        -*) [[ $valued == *\" ${COMP_WORDS[i]} \"* ]] &&\n"
          "            { [ \"${COMP_WORDS[i + 1]}\" = = ] || i=$((i + 1)); } "
          ";;\n"
          "        =) i=$((i + 1)) ;;\n"
          "        *)\n"
          "            [ -n \"$sub\" ] && break\n"
          "            sub=${COMP_WORDS[i]}\n"
          "            [ \"$sub\" = run ] || break\n"
          "            ;;\n"
          "        esac\n"
          "    done\n"
          "    if [ \"$sub\" = run ] && ((i < COMP_CWORD)); then\n"
          "        # The program's own words.\n"
          "        declare -F _command_offset >/dev/null && "
          "_command_offset $i\n"
          "        return\n"
          "    fi\n"
          "    if [ \"$sub\" = run ] && "
          "[ \"${COMP_WORDS[COMP_CWORD - 1]}\" = -- ]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -c -- \"$current\")\n"
          "        return\n"
          "    fi\n"
          "    case $previous in\n",
          out);
    vmml_bash_values(out, options);
    for (VMML_EACH_COMMAND(c))
        vmml_bash_values(out, c->argp->options);
    fputs("    *)\n"
          "        case $sub in\n"
          "        '') words='",
          out);
    for (VMML_EACH_COMMAND(c))
        fprintf(out, "%s ", c->name);
    vmml_bash_options(out, options);
    fputs("' ;;\n", out);
    for (VMML_EACH_COMMAND(c)) {
        fprintf(out, "        %s) words='", c->name);
        vmml_bash_options(out, c->argp->options);
        fputs("' ;;\n", out);
    }
    fputs("        esac\n"
          "        ;;\n"
          "    esac\n"
          "    if [ -n \"$files\" ]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
          "    elif [ \"$sub\" = run ] && [[ $words == --* ]] &&\n"
          "        [[ $current != -* ]]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -c -- \"$current\")\n"
          "    else\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- "
          "\"$current\")\n"
          "    fi\n"
          "}\n"
          "complete -o bashdefault -o default -F _vmmlane vmmlane\n",
          out);
}

/* --- zsh ----------------------------------------------------------------- */

static void vmml_zsh_options(FILE *out, const struct argp_option *options,
                             const char *indent)
{
    for (VMML_EACH_OPTION(o, options)) {
        const struct vmml_argument *argument = vmml_argument(o);
        bool optional = (o->flags & OPTION_ARG_OPTIONAL) != 0;

        fprintf(out, " \\\n%s'--%s%s[", indent, o->name,
                o->arg == NULL ? ""
                : optional     ? "=-"
                               : "=");
        vmml_quoted(out, o->doc, "[]\\:");
        fputc(']', out);
        if (o->arg != NULL)
            fprintf(out, "%s:%s:", optional ? ":" : "", o->arg);
        if (argument != NULL && argument->words != NULL)
            fprintf(out, "(%s)", argument->words);
        else if (argument != NULL)
            fputs("_files", out);
        fputc('\'', out);
    }
}

static void vmml_zsh(FILE *out, const struct argp_option *options)
{
    fputs("#compdef vmmlane\n"
          "_vmmlane() {\n"
          "    local -a commands=(\n",
          out);
    for (VMML_EACH_COMMAND(c)) {
        fprintf(out, "        '%s:", c->name);
        vmml_quoted(out, c->summary, ":\\");
        fputs("'\n", out);
    }
    fputs("    )\n"
          "    local curcontext=$curcontext state line\n"
          "    _arguments -C -A '-*'",
          out);
    vmml_zsh_options(out, options, "        ");
    fputs(" \\\n"
          "        '1:subcommand:->command' '*::argument:->rest' && return\n"
          "    case $state in\n"
          "    command) _describe subcommand commands ;;\n"
          "    rest)\n"
          "        case $line[1] in\n",
          out);
    for (VMML_EACH_COMMAND(c)) {
        fprintf(out, "        %s)\n            _arguments -S -A '-*'", c->name);
        vmml_zsh_options(out, c->argp->options, "                ");
        if (strcmp(c->name, "run") == 0)
            fputs(" \\\n                '(-)1:program:_command_names -e' "
                  "'*::argument:_normal'",
                  out);
        fputs("\n            ;;\n", out);
    }
    fputs("        esac\n"
          "        ;;\n"
          "    esac\n"
          "}\n"
          "if [ \"$funcstack[1]\" = _vmmlane ]; then\n"
          "    _vmmlane \"$@\"\n"
          "else\n"
          "    compdef _vmmlane vmmlane\n"
          "fi\n",
          out);
}

/* --- fish ---------------------------------------------------------------- */

static void vmml_fish_options(FILE *out, const char *condition,
                              const struct argp_option *options)
{
    for (VMML_EACH_OPTION(o, options)) {
        const struct vmml_argument *argument = vmml_argument(o);

        fprintf(out, "complete -c vmmlane -n '%s' -l %s", condition, o->name);
        if (vmml_takes_next_word(o))
            fputs(argument != NULL && argument->words == NULL ? " -r -F"
                                                              : " -x",
                  out);
        if (argument != NULL && argument->words != NULL)
            fprintf(out, " -a '%s'", argument->words);
        fputs(" -d '", out);
        vmml_quoted(out, o->doc, "");
        fputs("'\n", out);
    }
}

static void vmml_fish(FILE *out, const struct argp_option *options)
{
    char condition[96];

    fputs("# fish completion of vmmlane\n"
          "complete -c vmmlane -f\n",
          out);
    for (VMML_EACH_COMMAND(c)) {
        fprintf(out, "complete -c vmmlane -n __fish_use_subcommand -a %s -d '",
                c->name);
        vmml_quoted(out, c->summary, "");
        fputs("'\n", out);
    }
    vmml_fish_options(out, "__fish_use_subcommand", options);
    for (VMML_EACH_COMMAND(c)) {
        snprintf(condition, sizeof(condition), "__fish_seen_subcommand_from %s",
                 c->name);
        vmml_fish_options(out, condition, c->argp->options);
    }
    fputs("complete -c vmmlane -n '__fish_seen_subcommand_from run' -x -a "
          "'(__fish_complete_subcommand --fcs-skip=2)'\n",
          out);
}

int vmml_completion(const char *shell, FILE *out,
                    const struct argp_option *options)
{
    if (strcmp(shell, "bash") == 0)
        vmml_bash(out, options);
    else if (strcmp(shell, "zsh") == 0)
        vmml_zsh(out, options);
    else if (strcmp(shell, "fish") == 0)
        vmml_fish(out, options);
    else
        return -1;
    return 0;
}
