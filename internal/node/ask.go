package node

import (
	"context"
	"errors"
	"fmt"

	"penstock/internal/node/errs"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// MaxAnswerBytes bounds the answer to a question of another node, so that it neither fills a connection between nodes
// nor is larger than what such a connection takes.
const MaxAnswerBytes = 4 << 20

// Answerer answers the questions of other nodes: question and answer are JSON, and the engine looks into neither. It
// must change nothing, because a question may come twice and nobody checked who is behind it: the node that asks did.
// Several goroutines may call it at once, each for at most Options.PublishTimeout. question is borrowed.
type Answerer func(ctx context.Context, question []byte) (answer []byte, err error)

var (
	errNoAnswerer = errors.New("engine: this node answers no questions: it starts, or serves no clients")
	errLongAnswer = fmt.Errorf("engine: the answer is longer than %d bytes", MaxAnswerBytes)
	errOldVersion = errors.New("engine: the node is of a version that does not know such questions")
)

// OnQuestion sets what answers the questions that other nodes ask by AskNode; nil: they are refused. The nodes of a
// cluster ask each other for what only they know, such as the rates of what they lead.
func (e *Engine) OnQuestion(answer Answerer) {
	if answer == nil {
		e.answerer.Store(nil)
		return
	}
	e.answerer.Store(&answer)
}

// AskNode asks a node of the cluster, which may be this one, and returns its answer; a single node ignores node. It
// returns an error if the node cannot be reached, does not answer before ctx ends, or is of a version that does not
// know questions.
func (e *Engine) AskNode(ctx context.Context, node replicate.NodeID, question []byte) ([]byte, error) {
	if !e.members.others() || node == e.members.node().ID {
		return e.answerQuestion(ctx, question)
	}
	answer, err := e.cluster.ops.Ask(ctx, node, wire.Operation{Kind: wire.OpAsk, Ask: question})
	if errors.Is(err, errs.ErrNoTopic) {
		return nil, errOldVersion // it looked for the topic of an operation that it does not know
	}
	return answer, err
}

func (e *Engine) answerQuestion(ctx context.Context, question []byte) ([]byte, error) {
	f := e.answerer.Load()
	if f == nil {
		return nil, errNoAnswerer
	}
	answer, err := (*f)(ctx, question)
	if err == nil && len(answer) > MaxAnswerBytes {
		return nil, errLongAnswer
	}
	return answer, err
}
