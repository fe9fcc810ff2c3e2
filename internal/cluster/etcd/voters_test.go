package etcd

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestParsePeers(t *testing.T) {
	t.Parallel()
	peers, err := ParsePeers("a=10.0.0.1:4254, b=host.example:4254,c=[::1]:65533")
	want := []Voter{
		{"a", "10.0.0.1:4254", "10.0.0.1:4255", "10.0.0.1:4256"},
		{"b", "host.example:4254", "host.example:4255", "host.example:4256"},
		{"c", "[::1]:65533", "[::1]:65534", "[::1]:65535"},
	}
	if err != nil || !reflect.DeepEqual(peers, want) {
		t.Errorf("%v, %v", peers, err)
	}
	for list, complaint := range map[string]string{
		"":                          "is not name=host:port",
		"a=1.2.3.4:1,":              "is not name=host:port",
		"=1.2.3.4:1":                "is not name=host:port",
		"a":                         "is not name=host:port",
		"a=1.2.3.4":                 "is not host:port",
		"a=:4254":                   "neither an IP address nor a host name",
		"a=h:0":                     "is not host:port",
		"a=h:65534":                 "is not host:port",
		"a=h:http":                  "is not host:port",
		"a b=h:1":                   "cannot be the name of a node",
		"a=[fe80::1%eth0]:1":        "has the zone",
		"a=0.0.0.0:1":               "nobody can dial it",
		"a=h:1,a=i:1":               "the same name a",
		"a=h:1,b=h:1":               "the same address h:2",
		"a=h:1,b=h:2":               "the same address h:3",
		"a=h:1,b=h:9,c=h:5,d=h:4":   "the same address h:6",
		"a=1.2.3.4:1,b=1.2.3.4:-11": "is not host:port",
	} {
		if _, err := ParsePeers(list); err == nil || !strings.Contains(err.Error(), complaint) {
			t.Errorf("%q: want %q, got %v", list, complaint, err)
		}
	}
}

func FuzzParsePeers(f *testing.F) {
	f.Add("a=10.0.0.1:4254,b=10.0.0.2:4254")
	f.Add("a=[::1]:1")
	f.Fuzz(func(t *testing.T, list string) {
		peers, err := ParsePeers(list)
		if err != nil {
			return
		}
		var again []string
		for _, p := range peers {
			again = append(again, p.Name+"="+p.Node)
		}
		second, err := ParsePeers(strings.Join(again, ","))
		if err != nil || !reflect.DeepEqual(second, peers) {
			t.Errorf("%q becomes %v, then %v, %v", list, peers, second, err)
		}
	})
}

func TestVotersAndEndpoints(t *testing.T) {
	t.Parallel()
	for peers, count := range map[int]int{0: 0, 1: 1, 2: 1, 3: 3, 4: 3, 5: 5, 6: 5, 40: 5} {
		if got := Voters(many(peers)); len(got) != count || count > 0 && got[count-1].Name != fmt.Sprint("n", count-1) {
			t.Errorf("of %d nodes %v vote", peers, got)
		}
	}
	if got := fmt.Sprint(Endpoints(many(3), "n1")); got != "[h:101 h:100 h:102]" {
		t.Errorf("n1 uses %s", got)
	}
	if got := fmt.Sprint(Endpoints(many(3), "other")); got != "[h:100 h:101 h:102]" {
		t.Errorf("a node without a vote uses %s", got)
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const mine, other = "http://me:1", "http://other:1"
	member := func(name, peer string, served bool) known {
		k := known{ID: 7, Name: name, PeerURLs: []string{peer}}
		if served {
			k.ClientURLs = []string{"http://x:2"}
		}
		return k
	}
	for name, c := range map[string]struct {
		members []known
		want    entry
	}{
		"unknown":                         {[]known{member("b", other, true)}, add},
		"it just begins":                  {[]known{member("b", other, true), member("a", mine, false)}, found},
		"it served":                       {[]known{member("b", other, true), member("a", mine, true)}, replace},
		"it served elsewhere":             {[]known{member("a", other, true)}, replace},
		"added before":                    {[]known{member("b", other, true), member("", mine, false)}, join},
		"somebody else was added":         {[]known{member("", other, false)}, add},
		"another's address":               {[]known{member("b", mine, true)}, refuse},
		"its name wins over its address":  {[]known{member("b", mine, true), member("a", other, true)}, replace},
		"another's address, never served": {[]known{member("b", mine, false)}, refuse},
	} {
		if got, _ := decide("a", mine, c.members); got != c.want {
			t.Errorf("%s: %d, not %d", name, got, c.want)
		}
	}
}

// A member that was away since the beginning does not know that this node ever served. It must not be believed alone.
func TestOldKnowledgeIsNotBelieved(t *testing.T) {
	t.Parallel()
	voters := []Voter{{Name: "a", Peer: "me:1"}, {Name: "b", Peer: "b:1"}, {Name: "c", Peer: "c:1"}}
	m := &Member{o: MemberOptions{Name: "a", Voters: voters}, self: voters[0]}
	old := []known{{Name: "a", PeerURLs: []string{"http://me:1"}}}
	fresh := []known{{Name: "a", PeerURLs: []string{"http://me:1"}, ClientURLs: []string{"http://me:2"}}}
	for name, c := range map[string]struct {
		seen   []sighting
		begins bool
	}{
		"all empty":                   {[]sighting{{state: empty}, {state: empty}}, true},
		"one empty, one began":        {[]sighting{{state: empty}, {state: running, members: old}}, true},
		"both began":                  {[]sighting{{state: running, members: old}, {state: running, members: old}}, true},
		"one empty, one away":         {[]sighting{{state: empty}, {state: silent}}, false},
		"one began, one away":         {[]sighting{{state: running, members: old}, {state: silent}}, false},
		"one remembers, one does not": {[]sighting{{state: running, members: old}, {state: running, members: fresh}}, false},
		"one remembers, one empty":    {[]sighting{{state: empty}, {state: running, members: fresh}}, false},
		"nobody":                      {[]sighting{{state: silent}, {state: silent}}, false},
	} {
		c.seen[0].name, c.seen[1].name = "b", "c"
		_, err := m.decideWay(c.seen, 0)
		if begins := err == nil; begins != c.begins {
			t.Errorf("%s: begins %v, %v", name, begins, err)
		}
	}
}

func TestOlder(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"3.5.7": true, "3.4.30": true, "3.5.8": false, "3.5.16": false, "3.7.3": false, "4.0.0": false, "3.6.0-rc.1": false,
		"": false,
	} {
		if older(version, 3, 5, 8) != want {
			t.Errorf("%q", version)
		}
	}
}
