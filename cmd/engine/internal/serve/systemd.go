package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"penstock/internal/node"
)

// pingsPerPeriod is how often a node that lives says so in each period of the service manager's watchdog: one ping may
// be late without an alarm.
const pingsPerPeriod = 3

// notifySystemd reports the node's state to the service manager, if there is one. A failure to report is ignored.
func notifySystemd(state string) { _, _ = daemon.SdNotify(false, state) }

// startWatchdog pings the service manager's watchdog, if it has one for this process, until the returned function is
// called. serve calls it when the node is ready; before that systemd's watchdog does not run.
func startWatchdog(e *node.Engine, logger *slog.Logger) (stop func()) {
	period, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		logger.Warn("WATCHDOG_USEC cannot be read; the service manager's watchdog gets no pings", "error", err)
	}
	if period <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		live := func() (bool, string) {
			v := e.Verdict()
			return v.Live, v.Why
		}
		watchdog(ctx, period, live, notifySystemd, logger)
	}()
	return func() { cancel(); <-ended }
}

// watchdog calls tell(WATCHDOG=1) pingsPerPeriod times in each period while live says that the node lives. It says
// nothing while a restart would cure what is wrong, as GET /livez does, or while live does not return: then the service
// manager ends the process and starts it again. It runs on a goroutine of its own until ctx ends.
func watchdog(
	ctx context.Context, period time.Duration, live func() (bool, string), tell func(string), logger *slog.Logger,
) {
	tick := time.NewTicker(max(period/pingsPerPeriod, time.Millisecond))
	defer tick.Stop()
	for lived := true; ; {
		ok, why := live()
		if ok {
			tell(daemon.SdNotifyWatchdog)
		} else if lived {
			logger.Error("only a restart helps: the service manager's watchdog gets no more pings", "error", why,
				"restarts_within", period)
		}
		lived = ok
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
