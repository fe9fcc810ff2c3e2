package web

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"penstock/internal/node/errs"
)

// What the engine finds too big is answered with nsqd's code, and with what is beyond which limit.
func TestTooBigSaysTheLimit(t *testing.T) {
	for code, kind := range map[string]error{
		"MSG_TOO_BIG": errs.ErrMessageTooBig, "BODY_TOO_BIG": errs.ErrBatchTooBig,
	} {
		over := &errs.LimitError{Err: kind, What: "it", Value: 7, Most: 5, Setting: "max-it"}
		w := httptest.NewRecorder()
		WriteError(w, fmt.Errorf("more: %w", over))
		if want := `{"message":"` + code + `"}`; w.Code != 413 || w.Body.String() != want {
			t.Errorf("%d %s, not %s", w.Code, w.Body, want)
		}
		if got := w.Header().Get(DetailHeader); got != over.Text() {
			t.Errorf("%s: the detail is %q", code, got)
		}
	}
}
