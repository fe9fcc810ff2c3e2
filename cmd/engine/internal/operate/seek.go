package operate

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"penstock/cmd/engine/internal/cli"
)

// oldSeeks are the values of --to that had their own value in --value, and what is said now.
var oldSeeks = map[string]string{"beginning": "oldest", "end": "newest", "id": "", "time": "", "count": ""}

// seekPlace adds the parameters of /channel/seek to q, and says in words where the channel goes on. What was said
// otherwise in an earlier version is understood, and a line on progress says how it is said now.
func seekPlace(q url.Values, to, value string, progress io.Writer) (where string, err error) {
	if now, old := oldSeeks[to]; old {
		said := to
		if value != "" {
			said += " --value " + value
		}
		if now == "" {
			if now = value; to == "count" && !strings.HasPrefix(value, "-") && !strings.HasPrefix(value, "+") {
				now = "+" + value
			}
		}
		fmt.Fprintf(progress, "penstock: --to %s is said as --to %s since this version; the next one reads only that\n",
			said, now)
		to, value = now, ""
	}
	if value != "" {
		return "", cli.Fail(cli.ExitUsage, fmt.Errorf("--value %s belongs to no place: say --to %s", value, value))
	}
	set := func(kind, value string) {
		q.Set("to", kind)
		if value != "" {
			q.Set("value", value)
		}
	}
	if strings.HasPrefix(to, "+") || strings.HasPrefix(to, "-") {
		n, err := strconv.ParseInt(to, 10, 64)
		if err != nil {
			return "", cli.Fail(cli.ExitUsage, fmt.Errorf("--to %s is not a number of messages", to))
		}
		set("count", strconv.FormatInt(n, 10))
		if n < 0 {
			return fmt.Sprintf("%s back", cli.Counted(-n, "message")), nil
		}
		return fmt.Sprintf("%s forward", cli.Counted(n, "message")), nil
	}
	p, err := cli.ParsePlace("to", to, time.Now())
	switch {
	case err != nil:
		return "", err
	case p.Word == "oldest":
		set("beginning", "")
		return "the oldest message", nil
	case p.Word == "newest":
		set("end", "")
		return "the next message that is published", nil
	case p.IsID:
		set("id", p.String())
		return "message " + p.String(), nil
	}
	set("time", p.String())
	return "what was stored at " + p.String() + " or later", nil
}
