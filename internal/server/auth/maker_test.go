package auth

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// Topics count for the token that makes them, and for nobody if it administers the node. A name that a topic cannot
// remember becomes one that it can, and two such names stay two.
func TestMaker(t *testing.T) {
	some, all := []matcher{glob("a.*")}, []matcher{glob("*")}
	may := func(name string, g grant) *Principal { return &Principal{name: name, grants: []grant{g}} }
	for name, tc := range map[string]struct {
		who  *Principal
		want string
	}{
		"nobody has to prove anything": {nil, ""},
		"an administrator":             {may("root", grant{Admin, all, all}), ""},
		"an admin of some topics":      {may("a", grant{Admin, some, all}), "a"},
		"an admin of some channels":    {may("a", grant{Admin, all, some}), "a"},
		"a publisher to all":           {may("a", grant{Publish, all, all}), "a"},
		"without a name":               {may("", grant{Publish, all, all}), "an identity without a name"},
		"not UTF-8":                    {may("a\xff", grant{Publish, all, all}), "a?"},
	} {
		if got := tc.who.Maker(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	long := strings.Repeat("é", MaxMaker)
	one, two := may(long+"1", grant{}).Maker(), may(long+"2", grant{}).Maker()
	if one == two || len(one) > MaxMaker || !utf8.ValidString(one) || one != may(long+"1", grant{}).Maker() {
		t.Errorf("long names become %q and %q", one, two)
	}
	fits := strings.Repeat("x", MaxMaker)
	if got := may(fits, grant{}).Maker(); got != fits {
		t.Errorf("the longest name becomes %q", got)
	}
}
