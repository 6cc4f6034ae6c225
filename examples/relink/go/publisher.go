// Relink's publisher side. It sends on one channel with an id of size 0, so every packet of the server has 8 bytes.
// See docs/protocols/relink-wire.md.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand"
	"net"
	"sync"
	"time"
)

const window = 1024 // largest number of messages that are not consumed, and of messages in one transaction

const ( // the first byte of each packet: bit 0 channel, bit 1 multicast, bits 2-4 format, bits 5-7 type or flags
	nop, ping, pong, resume, shutdown          = 0x00, 0x20, 0x40, 0x60, 0x80
	message, largeMessage                      = 0x11, 0x51
	commitNumbered, closeChannel, closed       = 0x09, 0x41, 0x85
	received, consumed, committed, uncommitted = 0x05, 0x25, 0x45, 0x65
	numbered                                   = 0x08 // the bit of an acknowledgement with a sequence number
)

var (
	ErrUncommitted = errors.New("the server did not store the transaction")
	ErrUnknown     = errors.New("the link was lost: the messages may be stored or not")
)

type entry struct {
	payload []byte
	outcome chan error // only of the last message of a Publish, until the outcome is known
}

// Publisher is one link. It survives broken connections and restarts of the server.
type Publisher struct {
	address, endpoint string
	transactional     bool
	mutex             sync.Mutex
	changed           *sync.Cond
	epoch, id         uint64
	queue             []entry      // the messages that are not consumed; the first one has the number base
	base, sent, held  int          // sent is the next number to send, held the last one that the server holds
	targeted          map[byte]int // by type of acknowledgement: the number that it targets next
	connection        net.Conn     // nil while disconnected
	open              bool         // whether the connection may carry messages
	control           []byte       // packets that are sent before messages
	used, closing     bool         // whether the link has a channel; whether Close was called
	mine, theirs      bool         // whether shutdown was sent; whether it has arrived
}

// Dial returns a publisher that connects in the background. In stream, write %, ? and @ as %25, %3F and %40.
func Dial(address, stream string, transactional bool) *Publisher {
	p := &Publisher{address: address, endpoint: "publish:" + stream, transactional: transactional}
	p.changed = sync.NewCond(&p.mutex)
	go func() {
		for pause := 100 * time.Millisecond; !p.ended(); {
			if p.connect() { // a link was agreed upon
				pause = 100 * time.Millisecond
			} else if pause < 4*time.Second {
				pause *= 2
			}
			time.Sleep(pause*4/5 + time.Duration(rand.Int63n(int64(pause)*2/5)))
		}
	}()
	return p
}

// Publish sends messages; on a transactional link they are stored together or not at all. It waits for room in the
// window. The channel yields nil when all of them are on the server's disk, ErrUncommitted, or ErrUnknown.
func (p *Publisher) Publish(payloads ...[]byte) <-chan error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for len(p.queue) > 0 && len(p.queue)+len(payloads) > window {
		p.changed.Wait()
	}
	outcome := make(chan error, 1)
	if len(payloads) == 0 {
		outcome <- nil
		return outcome
	}
	for _, payload := range payloads {
		p.queue = append(p.queue, entry{payload: payload})
	}
	p.queue[len(p.queue)-1].outcome = outcome
	p.used = true
	p.changed.Broadcast()
	return outcome
}

// Close waits until everything is consumed, then closes the channel and shuts the link down.
func (p *Publisher) Close() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.closing = true
	for p.finish(); !(p.mine && p.theirs && p.connection == nil); {
		p.changed.Wait()
	}
}

func (p *Publisher) ended() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.mine && p.theirs
}

// connect makes a connection and serves it until it ends. It returns whether the peers agreed upon a link.
func (p *Publisher) connect() bool {
	c, err := net.DialTimeout("tcp", p.address, 10*time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	reply := make([]byte, 16)
	c.Write(make([]byte, 8)) // version 0
	if _, err = io.ReadFull(c, reply[:8]); err != nil || reply[0] != 0 {
		return false
	}
	hello := append(append([]byte{byte(len(p.endpoint))}, p.endpoint...), 0, 0, 0) // both id sizes, and the flags
	if p.transactional {
		hello[len(hello)-1] = 1
	}
	hello = append(hello, make([]byte, -len(hello)&7)...)
	hello = binary.LittleEndian.AppendUint64(hello, p.epoch)
	c.Write(binary.LittleEndian.AppendUint64(hello, p.id))
	if _, err = io.ReadFull(c, reply); err != nil {
		return false // without a reply: the server refuses the endpoint's name or its terms
	}
	epoch, id := binary.LittleEndian.Uint64(reply), binary.LittleEndian.Uint64(reply[8:])
	if epoch == 0 || id == 0 || id > math.MaxInt64 {
		return false
	}
	c.SetDeadline(time.Time{})
	p.begin(c, epoch, id)
	go p.write(c)
	valid := p.read(c)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.connection, p.open = nil, false; !valid {
		p.id = 0 // a protocol error ends the link, too
	}
	p.changed.Broadcast()
	return true
}

// begin resumes the old link, or takes a new one, on which nothing of the old one counts.
func (p *Publisher) begin(c net.Conn, epoch, id uint64) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.connection, p.control, p.held = c, nil, p.base-1 // earlier `received` do not count: the report says what is held
	if p.id != 0 && p.epoch == epoch && p.id == id {
		p.control = packet(resume) // without a report before it: the server opens no channels
		return
	}
	if p.id != 0 || p.used && p.sent > 0 {
		for at := range p.queue {
			p.settle(at, ErrUnknown)
		}
		p.queue = nil
	}
	p.base, p.sent, p.held, p.targeted = 0, 0, -1, map[byte]int{}
	p.epoch, p.id, p.used, p.open = epoch, id, len(p.queue) > 0, true
	p.theirs = p.mine // the server has seen our shutdown if it does not know the link any more
	p.finish()
}

// finish sends what is next on the way to the end: close, and after its answer shutdown.
func (p *Publisher) finish() {
	if p.closing && p.open && len(p.queue) == 0 {
		if p.used {
			p.control = append(p.control, packet(closeChannel)...)
		} else {
			p.control, p.mine = append(p.control, packet(shutdown)...), true
		}
	}
	p.changed.Broadcast()
}

func (p *Publisher) settle(at int, outcome error) {
	if one := &p.queue[at]; one.outcome != nil {
		one.outcome <- outcome
		one.outcome = nil
	}
}

// read handles packets until the connection ends; it returns false after a violation of the protocol.
func (p *Publisher) read(c net.Conn) bool {
	pinging := time.AfterFunc(15*time.Second, func() { p.handle(packet(nop), packet(ping)) })
	defer pinging.Stop()
	for stream, data := bufio.NewReader(c), packet(nop); ; pinging.Reset(15 * time.Second) {
		c.SetReadDeadline(time.Now().Add(45 * time.Second))
		if p.ended() {
			c.SetReadDeadline(time.Now().Add(5 * time.Second)) // the server closes the connection
		}
		if _, err := io.ReadFull(stream, data); err != nil {
			return true
		}
		if !p.handle(data, nil) {
			return false
		}
	}
}

// handle processes one packet, and sends the packet answer.
func (p *Publisher) handle(data, answer []byte) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.control = append(p.control, answer...)
	p.changed.Broadcast()
	switch kind := data[0]; kind {
	case nop, pong:
	case ping:
		p.control = append(p.control, packet(pong)...)
	case resume:
		if p.open {
			return false
		}
		p.resume()
	case shutdown:
		p.theirs = true
	case closed:
		if p.closing && p.open && len(p.queue) == 0 {
			p.used = false
			p.finish()
		}
	case received, consumed, committed, uncommitted:
		return p.acknowledged(kind, p.targeted[kind])
	case received | numbered, consumed | numbered, committed | numbered, uncommitted | numbered:
		return p.acknowledged(kind&^numbered, p.base+int(int32(binary.LittleEndian.Uint32(data[4:])-uint32(p.base))))
	default:
		return false
	}
	return true
}

// acknowledged processes an acknowledgement of everything up to number.
func (p *Publisher) acknowledged(kind byte, number int) bool {
	if number >= p.sent || kind > consumed && !p.transactional {
		return false
	}
	p.targeted[kind] = number + 1
	if kind == consumed || kind == received {
		p.held = max(p.held, number)
	}
	for at := 0; kind != received && p.base+at <= number; at++ {
		switch {
		case kind == uncommitted:
			p.settle(at, ErrUncommitted)
		case kind == committed || !p.transactional:
			p.settle(at, nil)
		case p.queue[at].outcome != nil:
			return false // consumed before its result
		}
	}
	if kind == consumed && number >= p.base {
		p.queue = p.queue[number+1-p.base:]
		p.base = number + 1
		p.finish()
	}
	return true
}

// resume sends what the server does not hold, then the commits without a result, then close or shutdown.
func (p *Publisher) resume() {
	p.open = true
	for p.sent = p.held + 1; p.sent < p.base+len(p.queue); p.sent++ {
		p.control = append(p.control, messagePacket(p.queue[p.sent-p.base].payload)...)
	}
	for at, one := range p.queue {
		if p.transactional && one.outcome != nil {
			p.control = append(p.control, commitPacket(p.base+at)...)
		}
	}
	p.finish()
}

// write sends packets until the connection ends.
func (p *Publisher) write(c net.Conn) {
	for {
		p.mutex.Lock()
		for p.connection == c && len(p.control) == 0 && !(p.open && p.sent < p.base+len(p.queue)) {
			p.changed.Wait()
		}
		if p.connection != c {
			p.mutex.Unlock()
			return
		}
		data := p.control
		p.control = nil
		for ; p.open && p.sent < p.base+len(p.queue) && len(data) < 1<<16; p.sent++ {
			one := p.queue[p.sent-p.base]
			if data = append(data, messagePacket(one.payload)...); p.transactional && one.outcome != nil {
				data = append(data, commitPacket(p.sent)...)
			}
		}
		p.mutex.Unlock()
		c.Write(data) // an error ends read, too
	}
}

func packet(first byte) []byte { return []byte{first, 0, 0, 0, 0, 0, 0, 0} }

func commitPacket(number int) []byte {
	return binary.LittleEndian.AppendUint32([]byte{commitNumbered, 0, 0, 0}, uint32(number))
}

func messagePacket(payload []byte) []byte {
	data := []byte{message, 1, byte(len(payload)), byte(len(payload) >> 8), 0, 0, 0, 0}
	if len(payload) > 0xFFFF {
		data = binary.LittleEndian.AppendUint64([]byte{largeMessage, 1, 0, 0, 0, 0, 0, 0}, uint64(len(payload)))
	}
	return append(append(data, payload...), make([]byte, -len(payload)&7)...)
}

func max(a, b int) int {
	if a > b {
		return a
	}
	return b
}
