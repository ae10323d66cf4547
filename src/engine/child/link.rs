//! The socket between a parent and a child. It carries messages of a fixed size, each whole or not at all.
//!
//! A message says where its contents are: in the shared memory, or in the memory whose handle comes with it. Both sides are the same
//! build; the first ask verifies that. Any thread may send without a lock, since the socket preserves message boundaries.

use rustix::{
    cmsg_space,
    io::retry_on_intr,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, send, sendmsg, shutdown,
        socketpair,
    },
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

/// Bytes of a message.
const MESSAGE: usize = 32;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Kind {
    /// From the parent: a command. Each has one answer.
    Ask = 1,
    /// From the child: the result of an ask.
    Answer = 2,
    /// From the parent: the answer has been read, and its memory belongs to the child again.
    Taken = 3,
}

/// A message: 32 bytes, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Which ask it belongs to.
    pub(super) id: u64,
    /// Offset of its text in the shared memory.
    pub(super) offset: u64,
    /// Bytes of text.
    pub(super) bytes: u64,
}

impl Message {
    fn encode(&self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        let numbers = [self.kind as u64, self.id, self.offset, self.bytes];
        for (chunk, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            *chunk = number.to_le_bytes();
        }
        bytes
    }

    fn decode(bytes: &[u8; MESSAGE]) -> Result<Message, String> {
        let (chunks, _) = bytes.as_chunks::<8>();
        let [kind, id, offset, bytes] = [0, 1, 2, 3].map(|index| u64::from_le_bytes(chunks[index]));
        let kind = match kind {
            1 => Kind::Ask,
            2 => Kind::Answer,
            3 => Kind::Taken,
            other => return Err(format!("a message of kind {other}, which is none")),
        };
        Ok(Message { kind, id, offset, bytes })
    }
}

/// One end of the socket.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

impl From<OwnedFd> for Link {
    fn from(socket: OwnedFd) -> Link {
        Link(socket)
    }
}

impl Link {
    /// A connected pair; the second end is for another process.
    pub(super) fn pair() -> io::Result<(Link, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Link(ours), theirs))
    }

    /// Sends a message. Fails if the other side is gone.
    pub(super) fn send(&self, message: &Message) -> io::Result<()> {
        let bytes = message.encode();
        retry_on_intr(|| send(&self.0, &bytes, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// The same, with a file handle, if there is one, which is duplicated for the other side.
    pub(super) fn send_with(&self, message: &Message, handle: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let Some(handle) = handle else { return self.send(message) };
        let bytes = message.encode();
        let handles = [handle];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !beside.push(SendAncillaryMessage::ScmRights(&handles)) {
            return Err(io::Error::other("no room for a handle beside a message"));
        }
        retry_on_intr(|| sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut beside, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Waits for a message and the handle that may come with it; `None` if the other side is gone.
    pub(super) fn receive(&self) -> io::Result<Option<(Message, Option<OwnedFd>)>> {
        let mut bytes = [0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::CMSG_CLOEXEC)
        });
        let count = match received {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        };
        let handle = beside.drain().find_map(|beside| match beside {
            RecvAncillaryMessage::ScmRights(mut handles) => handles.next(),
            _ => None,
        });
        match count {
            0 => Ok(None),
            MESSAGE => Ok(Some((Message::decode(&bytes).map_err(io::Error::other)?, handle))),
            other => Err(io::Error::other(format!("a message of {other} bytes instead of {MESSAGE}"))),
        }
    }

    /// Tells the other side that no more messages follow.
    pub(super) fn shut(&self) {
        if let Err(error) = shutdown(&self.0, Shutdown::Write) {
            tracing::debug!(?error, "the socket of a child was closed already");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_and_handles_arrive_whole_and_the_end_is_seen() {
        let (ours, theirs) = Link::pair().expect("sockets");
        let theirs = Link::from(theirs);
        let message = Message { kind: Kind::Ask, id: 7, offset: u64::MAX, bytes: 1 << 40 };
        let file = tempfile::tempfile().expect("a file");
        ours.send(&message).expect("sent");
        ours.send_with(&message, Some(file.as_fd())).expect("sent");
        let (first, none) = theirs.receive().expect("received").expect("a message");
        let (second, handle) = theirs.receive().expect("received").expect("a message");
        assert_eq!((first, second), (message, message));
        assert!(none.is_none() && handle.is_some());
        ours.shut();
        assert!(theirs.receive().expect("an end").is_none());
        drop(theirs);
        assert!(ours.send(&message).is_err(), "nobody is there");
    }

    #[test]
    fn a_message_of_no_kind_is_refused() {
        let mut bytes = Message { kind: Kind::Taken, id: 1, offset: 2, bytes: 3 }.encode();
        assert!(Message::decode(&bytes).is_ok());
        bytes[0] ^= 0x40;
        let why = Message::decode(&bytes).expect_err("no kind");
        assert!(why.contains("a message of kind 67, which is none"), "{why}");
    }
}
