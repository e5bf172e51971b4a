// SPDX-License-Identifier: GPL-2.0

//! The outcome for an importer or exporter that test machines do not have.

use kernel::prelude::*;

#[kunit_tests(vram_query)]
mod tests {
    use crate::{
        bench::{
            export,
            with_device,
            Asleep,
            Bo,
            Card,
            Object, //
        },
        importer::prompt, //
    };
    use kernel::{
        device::{
            Bound,
            Device, //
        },
        dma_buf::Attachment,
        drm::{
            gem::peer::{
                attachments,
                flags,
                query,
                AttachmentInfo,
                Outcome,
                Path,
                Reason, //
            },
            vram::Domain, //
        },
        faux,
        pci::p2pdma::MapType,
        prelude::*, //
    };

    /// The class of importer as which [`prompt`] attaches.
    const CLASS: u32 = flags::DYNAMIC | flags::REVOCABLE | flags::PEER2PEER;

    /// Asks for the outcome for `client`, attaches it, and returns the answer if both agree.
    fn ask_and_attach(
        card: &Card,
        object: &Object,
        client: &Device<Bound>,
    ) -> Result<query::Answer> {
        let importer = query::Importer::new(client, query::Class::new(CLASS)?);
        let answer = card.registered(|drm| query::of_object::<Bo>(object, drm, &importer))?;
        check_eq!(attachments::<Bo>(object)?.len(), 0);

        let buf = export(object)?;
        let at = Attachment::new(buf.clone(), client, prompt());
        check_eq!(at.as_ref().err().copied(), answer.outcome.result().err());
        let list = attachments::<Bo>(object)?;
        check_eq!(list.len(), 1);
        let AttachmentInfo {
            outcome,
            distance,
            flags,
            refused_at,
            ..
        } = list[0];

        check_eq!(outcome, answer.outcome);
        check_eq!(distance, answer.distance);
        check_eq!(flags, CLASS);
        check_eq!(refused_at.is_some(), outcome.path == Path::Refused);
        Ok(answer)
    }

    #[test]
    fn importer_is_not_pci() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let faux = faux::Registration::new(c"vram_kunit", None)?;
            let client: &Device<Bound> = faux.as_ref().as_ref();

            for (domain, outcome) in [
                (Domain::Vram, Outcome::refused(Reason::NotPci)),
                (Domain::Either, Outcome::system(Reason::NotPci)),
                (Domain::System, Outcome::system(Reason::NotPci)),
            ] {
                let object = card.object(1, &domain.places(), domain)?;
                let answer = ask_and_attach(&card, &object, client)?;

                check_eq!(answer.outcome, outcome);
                check!(answer.decision.is_none());

                // The answer does not depend on which device it is.
                let importer = query::Importer::not_pci(query::Class::new(CLASS)?);
                let any = card.registered(|drm| query::of_object::<Bo>(&object, drm, &importer))?;
                check_eq!(any.outcome, outcome);
                check_eq!(any.distance, None);
                check!(any.decision.is_none());
            }

            let class = query::Class::new(CLASS)?;
            for importer in [
                query::Importer::new(client, class),
                query::Importer::not_pci(class),
            ] {
                let answer = card.registered(|drm| query::of_vram::<Bo>(drm, &importer))?;
                check_eq!(answer.outcome, Outcome::refused(Reason::NotPci));
            }
            Ok(())
        })
    }

    #[test]
    fn device_does_not_resume() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let dev: &Device<Bound> = pdev.as_ref();
            let domains = [Domain::Vram, Domain::Either, Domain::System];
            let mut objects = KVec::new();
            for domain in domains {
                objects.push(card.object(1, &domain.places(), domain)?, GFP_KERNEL)?;
            }

            let asleep = Asleep::new(dev);
            for (object, outcome) in objects.iter().zip([
                Outcome::refused(Reason::Suspended),
                Outcome::system(Reason::Suspended),
                // The reason for an object that is never in VRAM is another one.
                Outcome::system(Reason::SystemOnly),
            ]) {
                let answer = ask_and_attach(&card, object, dev)?;

                check_eq!(answer.outcome, outcome);
                // The answer has the route in spite of that.
                let decision = answer.decision.ok_or(ENXIO)?;
                check_eq!(decision.map_type, MapType::BUS_ADDR);
                check_eq!(decision.bridge, Some(pdev.address()));
            }
            let importer = query::Importer::new(dev, query::Class::new(CLASS)?);
            let of_vram =
                || card.registered(|drm| Ok(query::of_vram::<Bo>(drm, &importer)?.outcome));
            check_eq!(of_vram(), Ok(Outcome::refused(Reason::Suspended)));
            drop(asleep);
            check_eq!(of_vram(), Ok(Outcome::peer(Path::PeerBus)));
            Ok(())
        })
    }

    #[test]
    fn object_is_encoded() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;

            for (domain, outcome) in [
                (Domain::Vram, Outcome::refused(Reason::Encoded)),
                (Domain::Either, Outcome::system(Reason::Encoded)),
                // It is never in VRAM.
                (Domain::System, Outcome::system(Reason::SystemOnly)),
            ] {
                let object = card.encoded(domain)?;
                let answer = ask_and_attach(&card, &object, pdev.as_ref())?;

                check_eq!(answer.outcome, outcome);
            }
            Ok(())
        })
    }

    #[test]
    fn bus_and_driver_of_the_importer_are_kept() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let faux = faux::Registration::new(c"vram_kunit", None)?;
            let object = card.object(1, &Domain::Vram.places(), Domain::Vram)?;
            let buf = export(&object)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;
            let refused = Attachment::new(buf, faux.as_ref().as_ref(), prompt());
            check_eq!(refused.err(), Some(EOPNOTSUPP));
            let list = attachments::<Bo>(&object)?;

            check_eq!(list.len(), 2);
            check!(list[0].bus.starts_with(b"pci\0"));
            check!(list[0].driver.starts_with(b"vram_kunit\0"));
            check!(list[1].name.starts_with(b"vram_kunit\0"));
            check!(list[1].bus.starts_with(b"faux\0"));
            check!(list[1].driver.starts_with(b"faux_driver\0"));
            drop(at);
            Ok(())
        })
    }
}
