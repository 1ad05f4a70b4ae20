# SPDX-License-Identifier: MIT
# Completion of oscar's commands and options in bash, from what help says. In zsh, first: autoload -U +X bashcompinit && bashcompinit
_oscar() {
  local word named=() commands options
  for word in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}" ""; do
    commands=$(oscar "${named[@]}" --help 2>/dev/null | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p')
    if [[ -n $word && $'\n'$commands$'\n' == *$'\n'$word$'\n'* ]]; then named+=("$word"); fi
  done
  options=$({ oscar --help; [[ ${#named[@]} == 0 ]] || oscar "${named[@]}" --help-all; } 2>/dev/null | grep -oE '^ +-[^ ]+' | grep -o -e '--[a-z][a-z-]*')
  COMPREPLY=($(compgen -W "$commands $options" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -o bashdefault -F _oscar oscar
