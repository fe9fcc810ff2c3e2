package inbox

import "testing"

// To refuse puts without a reason would answer them OK, though nobody stores them.
func TestRefuseNeedsAReason(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("puts are refused with nil")
		}
	}()
	new(Inbox).RefuseMessages(nil)
}
