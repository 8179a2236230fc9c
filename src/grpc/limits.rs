//! What a caller of the gRPC door may use of this process, each with its reason. The README has them in a table.

use std::time::Duration;

/// What gRPC allows unless told otherwise, and the reference with it. It has room for the longest headers that Envoy takes in
/// sixty descriptors at once.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Of a call of the native API, which has one descriptor.
pub const NATIVE_MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Of health checks and reflection, which ask with a name.
pub const SMALL_MESSAGE_BYTES_MAX: usize = 4 << 10;
/// Names and values of the headers of a call, and 32 bytes for each of them. Twice what gRPC calls its soft limit.
pub const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;
/// Calls under way on one connection. As many as Envoy has under way to a cluster unless told otherwise; with more it opens
/// another connection.
pub const STREAMS_MAX: u32 = 1_024;
/// Answers of the native API at a time that have all rules in them: with many rules each has megabytes.
pub const LARGE_ANSWERS_MAX: usize = 4;
/// Calls on one connection that go on until the caller ends them: health watches, reflection.
pub const WATCHES_MAX: usize = 16;
/// What a connection may send before it is read: well beyond what a long way needs, and all that one connection can make us
/// keep unread.
pub const WINDOW_BYTES: u32 = 256 << 10;
/// Of an answer that waits to be sent.
pub const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Streams that were opened and reset before we looked. Envoy resets every call that it gives up on, and after a pause of ours
/// many of these come at once; h2's own default closes the connection with the 21st.
pub const PENDING_RESETS_MAX: usize = 8_192;
/// What everybody may send within [`crate::drain::SLICE`], in frames, without asking anything: pings, priorities, window updates,
/// empty data, streams that were opened without a message. A caller that is well has a few. More than fit one turn, in which
/// nothing has been earned yet. See [`super::frames`].
pub const ALLOWANCE: i64 = 4_096;
/// What a call adds that was asked in full: its own frames, and those around it.
pub const CALL_EARNS: i64 = 8;
/// What a connection can have at most: a stop of ours in which Envoy gives up on a hundred thousand calls.
pub const ALLOWANCE_MAX: i64 = 1 << 18;
/// What settings cost: each is applied to every stream of the connection. A caller that is well sends a few in all.
pub const SETTINGS_COST: i64 = 64;
/// What a continuation of headers costs: headers that need one are too long in any case.
pub const CONTINUATION_COST: i64 = 1_024;
/// What data without a byte costs that does not end its call either. h2 ends the connection with the 101st in its life, and at once;
/// with this it is held like any other flood before that.
pub const EMPTY_DATA_COST: i64 = 64;
/// Who has used half of the allowance is read so much at a time,
pub const NOISY_READ_BYTES_MAX: usize = 1 << 10;
/// and so often.
pub const NOISY_PAUSE: Duration = Duration::from_millis(5);
/// How long a flood is left unread before it is ended: so long it does not come back.
pub const FLOOD_HELD: Duration = Duration::from_secs(1);
/// How much of one connection is read before the others get their turn: about a hundred calls.
pub const READ_BYTES_MAX: usize = 16 << 10;

/// For the TLS handshake and the first bytes of HTTP/2 to arrive.
pub const OPENING_MAX: Duration = Duration::from_secs(10);
/// For the message of a call, from its head to its end. A caller who takes longer loses that call, and nobody else on the connection
/// does.
pub const MESSAGE_MAX: Duration = Duration::from_secs(10);
/// For the first call on a connection. Envoy opens one only when it has a call to make.
pub const FIRST_CALL_MAX: Duration = Duration::from_secs(60);
/// How often a silent caller is asked whether it is still there, and how long it may take to say so.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
