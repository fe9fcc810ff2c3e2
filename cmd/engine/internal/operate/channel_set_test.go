package operate

import (
	"testing"

	"penstock/internal/node/machine"
)

func TestParseRule(t *testing.T) {
	for text, want := range map[string]machine.Rule{
		"a=b":    {Header: "a", Match: machine.MatchExact, Pattern: "b"},
		"a=":     {Header: "a", Match: machine.MatchExact},
		"a^=b=c": {Header: "a", Match: machine.MatchPrefix, Pattern: "b=c"},
		"a*=b*":  {Header: "a", Match: machine.MatchGlob, Pattern: "b*"},
		"a~=^b$": {Header: "a", Match: machine.MatchRegexp, Pattern: "^b$"},
		"a=b~=c": {Header: "a", Match: machine.MatchExact, Pattern: "b~=c"},
		"a":      {Header: "a", Match: machine.MatchExists},
	} {
		if got := parseRule(text); got != want {
			t.Errorf("%q is %+v, want %+v", text, got, want)
		}
		if got := ruleText(&want); got != text {
			t.Errorf("%+v is %q, want %q", want, got, text)
		}
	}
}
