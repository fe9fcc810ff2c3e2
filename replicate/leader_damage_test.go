package replicate

import "testing"

// A replica says that it is damaged, or whole again, in an ack. An ack that was sent before that may arrive behind it,
// on the connection that was there before. So an ack alone does not end the damage: the leader asks, and the report
// counts.
func TestLateAckDoesNotEndDamage(t *testing.T) {
	r := newLeaderRig(t, Config{}, 3, 2)
	r.serve()
	r.append(1)
	r.durable(2)
	p := r.l.peer(2)
	r.say(2, Message{Kind: MsgAck, Position: 2, Offset: r.log.stateAt(2).End, Damaged: true})
	if !p.Damaged {
		t.Fatal("the leader did not hear of the damage")
	}
	late := Message{Kind: MsgAck, Position: 1, Offset: r.log.stateAt(1).End}
	acts := r.say(2, late)
	if ask := find(acts, ActSend); !p.Damaged || ask == nil || ask.Message.Kind != MsgProbe {
		t.Fatalf("a late ack ended the damage: %v, and the leader asks %+v", !p.Damaged, ask)
	}
	r.exchange(2, 2) // its report says that it is whole
	if r.ack(2, 2); p.Damaged {
		t.Error("it is whole again, and does not count")
	}
	r.say(2, Message{Kind: MsgAck, Position: 2, Offset: r.log.stateAt(2).End, Damaged: true})
	r.say(2, Message{Kind: MsgReject, Code: RejectDamaged})
	request := p.request
	if r.say(2, Message{Kind: MsgAck, Position: 2, Offset: r.log.stateAt(2).End}); !p.Damaged || p.request != request {
		t.Error("an ack ended a refusal")
	}
}
