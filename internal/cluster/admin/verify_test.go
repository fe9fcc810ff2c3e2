package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A comparison is passed on to the engine as requested, and its answer comes back unchanged.
func TestVerify(t *testing.T) {
	asked := ""
	verify := func(_ context.Context, topic string, partition uint32, at int64) (any, error) {
		asked = fmt.Sprint(topic, partition, at)
		if at == 7 {
			return nil, errors.New("a node is gone")
		}
		return map[string]int{"next": 5}, nil
	}
	h := Handler(&fakeStore{shown: testSnapshot()}, Self{Name: "n2", Verify: verify})
	if w := ask(h, "POST", "/cluster/verify", `{"topic":"orders","partition":1,"at":3}`); w.Code != 200 ||
		strings.TrimSpace(w.Body.String()) != `{"next":5}` || asked != "orders1 3" {
		t.Errorf("%d %s, asked for %s", w.Code, w.Body, asked)
	}
	for body, status := range map[string]int{
		`{"topic":"orders","partition":1,"at":7}`: http.StatusServiceUnavailable,
		`{"topic":"orders","partition":9}`:        http.StatusNotFound,
		`{"topic":"nothing","partition":0}`:       http.StatusNotFound,
		`{"topic":"orders"}`:                      http.StatusBadRequest,
		`{`:                                       http.StatusBadRequest,
	} {
		if w := ask(h, "POST", "/cluster/verify", body); w.Code != status || sentence(t, w) == "" {
			t.Errorf("%s: %d %s, want %d", body, w.Code, w.Body, status)
		}
	}
	none := Handler(&fakeStore{shown: testSnapshot()}, Self{Name: "n2"})
	if w := ask(none, "POST", "/cluster/verify", `{"topic":"orders","partition":1}`); w.Code != http.StatusNotFound {
		t.Errorf("without an engine: %d %s", w.Code, w.Body)
	}
}
